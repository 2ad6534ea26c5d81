// Drawing one token from one row of logits. A pure function of the row and its arguments.
//
// Order: masks and bias, penalties, temperature, min_p, top_k, top_p. Candidates are ranked by (logit descending, id
// ascending) and the draw inverts their cumulative distribution. Reported logprobs come from the raw logits.
#pragma once
#include <algorithm>

#include "abi.h"
#include "simd.h"

namespace {

// Counter-based random bits: SplitMix64's finalizer (Steele et al. 2014) over each word of the key in turn.
inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
// A uniform number in [0, 1) with 53 bits, keyed by (seed, choice, position, purpose).
inline double keyed_uniform(uint64_t seed, int32_t choice, int64_t position, uint64_t purpose) {
  const uint64_t bits = mix(mix(mix(mix(seed) ^ uint64_t(uint32_t(choice))) ^ uint64_t(position)) ^ purpose);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

inline float max_of(const float* x, int n) {
  float best = -INFINITY;
  int i = 0;
  if (n >= LANES) {
    vf top = load(x);
    for (; i + LANES <= n; i += LANES) top = max(load(x + i), top);
    best = max_lanes(top);
  }
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// log(sum(exp(x - top))): 16 lanes in f32, each flushed to a double every 256 steps.
inline double log_sum_exp(const float* x, int n, float top) {
  double total = 0.0;
  for (int begin = 0; begin < n; begin += 4096) {
    const int end = std::min(n, begin + 4096);
    vf sum = zero();
    for (int i = begin; i < end; i += LANES) {
      if (i + LANES <= end) {
        sum = add(sum, exp(sub(load(x + i), set1(top))));
      } else {
        float tail[LANES];
        for (int j = 0; j < LANES; ++j) tail[j] = i + j < end ? x[i + j] : -INFINITY;
        sum = add(sum, exp(sub(load(tail), set1(top))));
      }
    }
    total += sum_lanes(sum);
  }
  return std::log(total);
}

// A NaN anywhere, or an infinite maximum. (-inf is a legitimate logit: a masked token.)
inline bool is_broken(const float* x, int n) {
  const vf lowest = set1(-INFINITY), one = set1(1.0f);
  vf sound = zero(), top = lowest;
  int i = 0, count = 0;
  for (; i + LANES <= n; i += LANES) {
    const vf v = load(x + i);
    sound = add(sound, keep_where_ge(v, lowest, one));
    top = max(v, top);
  }
  for (count = static_cast<int>(sum_lanes(sound)); i < n; ++i) count += x[i] >= -INFINITY && x[i] < INFINITY;
  return count != n || max_lanes(top) == INFINITY;
}

// Every id of a list, and its place there; ids outside the vocabulary name no logit and are passed over.
template <class F>
TS_INLINE void each_id(const int32_t* ids, int count, int vocab, F&& f) {
  for (int i = 0; i < count; ++i)
    if (static_cast<uint32_t>(ids[i]) < static_cast<uint32_t>(vocab)) f(ids[i], i);
}

// Masks, bias and penalties, in place.
inline void adjust(float* x, int vocab, const SampleArgs& a, int32_t* seen) {
  auto forget = [&](int32_t id, int) { seen[id] = 0; };
  if (a.mask)
    for (int i = 0; i < vocab; ++i)
      if (!(a.mask[i / 32] >> (i % 32) & 1)) x[i] = -INFINITY;
  if (a.num_allowed > 0) {
    for (int i = 0; i < vocab; ++i) seen[i] = 0;
    each_id(a.allowed_ids, a.num_allowed, vocab, [&](int32_t id, int) { seen[id] = 1; });
    for (int i = 0; i < vocab; ++i)
      if (!seen[i]) x[i] = -INFINITY;
  }
  each_id(a.banned_ids, a.num_banned, vocab, [&](int32_t id, int) { x[id] = -INFINITY; });
  each_id(a.bias_ids, a.num_bias, vocab, [&](int32_t id, int i) { x[id] += a.bias_values[i]; });
  if (a.repetition != 1.0f) {
    auto once = [&](int32_t id, int) {
      if (seen[id]++ == 0) x[id] = x[id] > 0.0f ? x[id] / a.repetition : x[id] * a.repetition;
    };
    each_id(a.prompt_ids, a.num_prompt, vocab, forget);
    each_id(a.output_ids, a.num_output, vocab, forget);
    each_id(a.prompt_ids, a.num_prompt, vocab, once);
    each_id(a.output_ids, a.num_output, vocab, once);
  }
  if (a.presence != 0.0f || a.frequency != 0.0f) {
    each_id(a.output_ids, a.num_output, vocab, forget);
    each_id(a.output_ids, a.num_output, vocab, [&](int32_t id, int) { ++seen[id]; });
    each_id(a.output_ids, a.num_output, vocab, [&](int32_t id, int) {
      if (seen[id] == 0) return;
      x[id] -= a.presence + a.frequency * static_cast<float>(seen[id]);
      seen[id] = 0;
    });
  }
}

// Where the maximum `value` stands first.
inline int32_t first_index_of(const float* x, int n, float value) {
  constexpr int run = 256;
  for (int begin = 0; begin < n; begin += run) {
    const int end = std::min(n, begin + run);
    if (max_of(x + begin, end - begin) < value) continue;
    for (int i = begin; i < end; ++i)
      if (x[i] == value) return i;
  }
  return 0;
}

// Ranks candidates lazily, best first: tiers of `depth` logits below the best are collected and sorted as they are asked
// for, since a draw seldom looks far. Nothing below `floor` is a candidate.
class Ranking {
 public:
  Ranking(const float* x, int n, float top, float depth, float floor, int32_t* order)
      : x_(x), order_(order), n_(n), high_(INFINITY), low_(top), depth_(depth), floor_(floor) {}

  int32_t at(int rank) {  // -1: there are not so many candidates
    while (rank >= ready_) {
      if (high_ <= floor_) return -1;
      next_tier();
    }
    return order_[rank];
  }

 private:
  void next_tier() {
    low_ = std::max(floor_, low_ - depth_);
    depth_ *= 2.0f;
    const int begin = ready_;
    for (int i = 0; i < n_; ++i) {
      order_[ready_] = i;  // written even where it does not stay: one place past the last candidate at most
      ready_ += x_[i] >= low_ && x_[i] < high_;
    }
    std::sort(order_ + begin, order_ + ready_, [this](int32_t a, int32_t b) { return x_[a] > x_[b] || (x_[a] == x_[b] && a < b); });
    high_ = low_;
  }

  const float* x_;
  int32_t* order_;
  int n_, ready_ = 0;
  float high_, low_, depth_, floor_;
};

// Sum over all x >= floor of exp((x - top) / temperature).
inline double total_weight(const float* x, int n, float top, float temperature, float floor) {
  double total = 0.0;
  for (int begin = 0; begin < n; begin += 4096) {
    const int end = std::min(n, begin + 4096);
    vf sum = zero();
    for (int i = begin; i < end; i += LANES) {
      float tail[LANES];
      for (int j = 0; i + LANES > end && j < LANES; ++j) tail[j] = i + j < end ? x[i + j] : -INFINITY;
      const vf v = load(i + LANES > end ? tail : x + i);
      sum = add(sum, keep_where_ge(v, set1(floor), exp(div(sub(v, set1(top)), set1(temperature)))));
    }
    total += sum_lanes(sum);
  }
  return total;
}

// The candidates that temperature, min_p, top_k and top_p leave of adjusted logits `x`, best first: those before `limit`, down
// to the one where their weights reach `nucleus`. `order`: n + 1 ids of scratch.
struct Support {
  const float* x;
  float top, temperature, floor;
  int limit;
  Ranking ranking;
  double nucleus;

  // Beyond 87 a weight is zero in f32; beyond -log(min_p) it is under min_p of the best.
  static float lowest(const SampleArgs& a, float top) {
    const float reach = a.min_p > 0.0f ? std::min(87.0f, -std::log(a.min_p)) : 87.0f;
    return top - reach * a.temperature;
  }
  double weight(int32_t id) const { return std::exp(static_cast<double>(x[id] - top) / static_cast<double>(temperature)); }

  Support(const float* x_, int n, const SampleArgs& a, float top_, int32_t* order)
      : x(x_), top(top_), temperature(a.temperature), floor(lowest(a, top_)), limit(a.top_k > 0 ? std::min(n, a.top_k) : n),
        ranking(x_, n, top_, 7.0f * a.temperature, floor, order) {
    double mass = 0.0;
    if (limit < n) {
      for (int i = 0; i < limit && ranking.at(i) >= 0; ++i) mass += weight(ranking.at(i));
    } else {
      mass = total_weight(x, n, top, temperature, floor);
    }
    nucleus = mass;
    if (a.top_p < 1.0f) {  // the smallest prefix that reaches top_p of the mass, the most likely token at least
      nucleus = weight(ranking.at(0));
      for (int i = 1; i < limit && nucleus < static_cast<double>(a.top_p) * mass && ranking.at(i) >= 0; ++i) nucleus += weight(ranking.at(i));
    }
  }
};

// Temperature, min_p, top_k, top_p and the draw, over adjusted logits `x` (`order`: n + 1 ids of scratch).
inline int32_t draw(const float* x, int n, const SampleArgs& a, float top, int32_t* order) {
  if (a.temperature < 1e-5f) return first_index_of(x, n, top);
  Support support(x, n, a, top, order);
  const double goal = keyed_uniform(a.seed, a.choice, a.position, 0) * support.nucleus;
  int32_t chosen = support.ranking.at(0);
  double reached = support.weight(chosen);
  for (int i = 1; i < support.limit && reached <= goal && reached < support.nucleus && support.ranking.at(i) >= 0; ++i) {
    chosen = support.ranking.at(i);
    reached += support.weight(chosen);
  }
  return chosen;
}

// What `draw` draws from, over all n tokens: temperature, min_p, top_k and top_p applied, summing to 1.
inline void distribution(const float* x, int n, const SampleArgs& a, float top, int32_t* order, float* probs) {
  memset(probs, 0, n * sizeof(float));
  if (a.temperature < 1e-5f) {
    probs[first_index_of(x, n, top)] = 1.0f;
    return;
  }
  Support support(x, n, a, top, order);
  if (support.limit >= n && a.top_p >= 1.0f) {
    double mass = 0.0;
    for (int i = 0; i < n; ++i)
      if (x[i] >= support.floor) mass += support.weight(i);
    for (int i = 0; i < n; ++i)
      if (x[i] >= support.floor) probs[i] = static_cast<float>(support.weight(i) / mass);
    return;
  }
  double reached = 0.0;
  int count = 0;
  while (count < support.limit && reached < support.nucleus && support.ranking.at(count) >= 0) reached += support.weight(support.ranking.at(count++));
  for (int i = 0; i < count; ++i) probs[support.ranking.at(i)] = static_cast<float>(support.weight(support.ranking.at(i)) / reached);
}

// The most likely tokens of the raw logits, their logprobs, and the chosen token's logprob and rank.
inline void report(const float* logits, int vocab, const SampleArgs& a, int32_t* order, SampleResult* result, int32_t* top_ids,
                   float* top_logprobs) {
  const float top = max_of(logits, vocab);
  const double normaliser = log_sum_exp(logits, vocab, top);
  auto logprob = [&](int32_t id) { return static_cast<float>(static_cast<double>(logits[id] - top) - normaliser); };
  const float chosen = logits[result->token_id];
  int rank = 1;
  for (int i = 0; i < vocab; ++i) rank += logits[i] > chosen || (logits[i] == chosen && i < result->token_id);
  result->rank = rank;
  result->logprob = logprob(result->token_id);
  if (a.num_logprobs <= 0) return;
  Ranking ranking(logits, vocab, top, 7.0f, -INFINITY, order);
  for (int i = 0; i < a.num_logprobs && i < vocab; ++i) {
    top_ids[i] = ranking.at(i);
    top_logprobs[i] = logprob(top_ids[i]);
  }
}

void sample_row(const float* logits, int vocab, const SampleArgs& a, float* work, int32_t* order, SampleResult* result,
                int32_t* top_ids, float* top_logprobs) {
  *result = {a.target >= 0 ? a.target : 0, 0, is_broken(logits, vocab) || a.target >= vocab, 0.0f};
  if (result->is_nan) return;
  if (a.target < 0) {
    const bool plain = !a.mask && !a.num_allowed && !a.num_banned && !a.num_bias && a.repetition == 1.0f &&
                       a.presence == 0.0f && a.frequency == 0.0f;
    const float* x = logits;
    if (!plain) {
      memcpy(work, logits, vocab * sizeof(float));
      adjust(work, vocab, a, order);
      x = work;
    }
    const float top = max_of(x, vocab);
    if (!(top > -INFINITY)) {  // every token is masked
      result->is_nan = 2;
      return;
    }
    result->token_id = draw(x, vocab, a, top, order);
    if (a.probs) distribution(x, vocab, a, top, order, a.probs);
  }
  if (a.num_logprobs >= 0) report(logits, vocab, a, order, result, top_ids, top_logprobs);
}

}  // namespace
