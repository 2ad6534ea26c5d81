// Asks again and again: not while the tab is hidden or somebody has paused it, and ever more slowly while it fails.

const MAX_DELAY = 30_000;

export class Poller {
  // task(): asks once. interval(): ms until the next time. onError(error, delay): delay in ms, null if it gave up.
  constructor({ task, interval, onError }) {
    Object.assign(this, { task, interval, onError });
    this.isPaused = false;
    this.failures = 0;
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.wake());
    this.wake();
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.wake();
  }

  // Ask now: something has changed.
  wake() {
    clearTimeout(this.timer);
    if (!this.isAsking) this.#ask();
  }

  async #ask() {
    if (document.hidden || this.isPaused) return; // `wake` comes
    this.isAsking = true;
    let delay;
    try {
      await this.task();
      this.failures = 0;
      delay = this.interval();
    } catch (error) {
      this.failures += 1;
      // 401 and 404 do not pass by themselves.
      delay = [401, 404].includes(error.status) ? null : Math.min(MAX_DELAY, 1000 * 2 ** (this.failures - 1));
      this.onError(error, delay);
    }
    this.isAsking = false;
    clearTimeout(this.timer);
    if (delay !== null) this.timer = setTimeout(() => this.#ask(), delay);
  }
}
