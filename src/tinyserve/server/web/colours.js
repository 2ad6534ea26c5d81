// One colour for each request while it is there: neighbours differ, and it does not change from one look to the next.

const TURN = 137.5; // degrees; the golden angle keeps few hues far apart

export class Colours {
  constructor() {
    this.slots = new Map(); // request key -> slot
  }

  // Give slots to new keys, take back those of keys that are gone.
  update(keys) {
    const present = new Set(keys);
    for (const key of this.slots.keys()) if (!present.has(key)) this.slots.delete(key);
    const taken = new Set(this.slots.values());
    let next = 0;
    for (const key of keys) {
      if (this.slots.has(key)) continue;
      while (taken.has(next)) next += 1;
      taken.add(next);
      this.slots.set(key, next);
    }
  }

  of(key, isDark) {
    const slot = this.slots.get(key) ?? 0;
    const hue = (195 + slot * TURN) % 360;
    const step = slot % 3; // hues come close after a dozen; lightness then tells them apart
    return isDark ? `oklch(${0.7 + 0.05 * step} 0.13 ${hue})` : `oklch(${0.66 - 0.06 * step} 0.14 ${hue})`;
  }
}

export function keyOf(request) {
  return `${request.id}/${request.choice}`;
}

// A colour of the style sheet as the canvas wants it: resolved for the theme in force.
export function resolved(name, element) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

export function isDark() {
  return getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
}
