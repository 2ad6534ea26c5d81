// How the attention of a step is cut into tasks. Prefill chunks become tiles of tokens that fold their partitions as they
// go; short runs of queries (decodes, verifications) over long contexts have their partitions computed side by side.
//
// Short runs whose sequences begin with the same blocks are put together, partition by partition, so that shared keys are
// read once for all of them. Tables are sorted, so those with most in common are neighbours; where nothing is shared,
// that costs one comparison of first blocks for each pair looked at. No choice made here changes a bit of a result.
#pragma once
#include <algorithm>

#include "tasks.h"

class AttentionPlanner {
 public:
  AttentionPlanner(const Op& op, const KVCache& kv, const Step& step, AttentionPlan& plan)
      : step_(step), plan_(plan), block_size_(kv.block_size), group_(op.num_heads / op.num_kv_heads),
        tile_tokens_(std::max(1, SPLIT_MAX_ROWS / group_)) {}

  void make() {
    plan_.runs.clear();
    plan_.tasks.clear();
    plan_.merges.clear();
    plan_.keys_read = 0;
    add_short_runs();
    add_tiles();  // first, since they take longest
    split_short_runs();
  }
  int64_t num_slots() const { return slots_; }

 private:
  static constexpr int MIN_SHARED = 32;  // keys worth a common tile

  struct Table {
    const int32_t* blocks;
    int count;
  };
  Table table(const RowRun& run) const {
    const int last = step_.positions[run.first_row + run.tokens - 1];
    return {step_.block_ids + step_.block_starts[run.seq], last / block_size_ + 1};
  }

  int tokens_of(int seq) const { return step_.seq_starts[seq + 1] - step_.seq_starts[seq]; }
  int partitions_until(int row) const { return step_.positions[row] / KEY_PARTITION + 1; }

  void add_short_runs() {
    for (int seq = 0; seq < step_.num_seqs; ++seq) {
      const int first = step_.seq_starts[seq], tokens = tokens_of(seq);
      if (tokens == 0 || tokens > tile_tokens_) continue;
      plan_.runs.push_back({seq, first, tokens, partitions_until(first + tokens - 1), 0});
    }
    if (step_.cascade)
      std::sort(plan_.runs.begin(), plan_.runs.end(), [&](const RowRun& a, const RowRun& b) {
        const Table x = table(a), y = table(b);
        return std::lexicographical_compare(x.blocks, x.blocks + x.count, y.blocks, y.blocks + y.count);
      });
    common_.assign(plan_.runs.size(), 0);
    for (size_t i = 0; step_.cascade && i + 1 < plan_.runs.size(); ++i) common_[i] = common_keys(plan_.runs[i], plan_.runs[i + 1]);
  }

  // Positions, in whole lanes, that two sequences have in the same blocks.
  int common_keys(const RowRun& a, const RowRun& b) const {
    const Table x = table(a), y = table(b);
    const int most = std::min(x.count, y.count);
    const int blocks = static_cast<int>(std::mismatch(x.blocks, x.blocks + most, y.blocks).first - x.blocks);
    return blocks * block_size_ / PANEL * PANEL;
  }

  void add_tiles() {
    for (int seq = 0; seq < step_.num_seqs; ++seq) {
      const int first = step_.seq_starts[seq], tokens = tokens_of(seq);
      if (tokens <= tile_tokens_) continue;
      for (int t = 0; t < tokens; t += tile_tokens_)
        add_whole(seq, first + t, std::min(tile_tokens_, tokens - t));
    }
  }
  void add_whole(int seq, int first, int tokens) {
    plan_.runs.push_back({seq, first, tokens, partitions_until(first + tokens - 1), 0});
    add_task(static_cast<int>(plan_.runs.size()) - 1, 1, -1, 0);
  }

  void split_short_runs() {
    const int count = static_cast<int>(common_.size());
    int most = 0;
    for (int i = 0; i < count; ++i) {
      RowRun& run = plan_.runs[i];
      const bool has_company = common_[i] >= MIN_SHARED || (i > 0 && common_[i - 1] >= MIN_SHARED);
      if (run.partitions == 1 && !has_company) {
        add_task(i, 1, -1, 0);
        run.partitions = 0;  // nothing left to split
        continue;
      }
      plan_.merges.push_back(i);
      run.slot = slots_;
      slots_ += int64_t(run.partitions) * run.tokens * group_;
      most = std::max(most, run.partitions);
    }
    for (int p = 0; p < most; ++p)
      for (int i = 0; i < count;) i = plan_.runs[i].partitions > p ? add_group(i, count, p) : i + 1;
  }

  // One task for runs first, first + 1, ...: as many as fit into a tile, share no less than the first two do, and are not
  // much closer to those after them.
  int add_group(int first, int count, int partition) {
    const int begin = partition * KEY_PARTITION, end = begin + KEY_PARTITION;
    int shared = 0, next = first + 1, rows = plan_.runs[first].tokens * group_;
    for (; next < count; ++next) {
      const RowRun& run = plan_.runs[next];
      const int common = std::min(common_[next - 1], end);
      rows += run.tokens * group_;
      if (run.partitions <= partition || rows > SPLIT_MAX_ROWS || common < std::max(shared, begin + MIN_SHARED)) break;
      if (shared == 0) shared = common;
      if (std::min(common_[next], end) > shared + 2 * MIN_SHARED) break;
    }
    add_task(first, next - first, partition, shared);
    return next;
  }

  void add_task(int first, int count, int partition, int shared) {
    plan_.tasks.push_back({first, count, partition, shared});
    const int begin = std::max(0, partition) * KEY_PARTITION;
    if (count > 1) plan_.keys_read += shared - begin;
    for (int i = first; i < first + count; ++i) {
      const RowRun& run = plan_.runs[i];
      const int length = step_.positions[run.first_row + run.tokens - 1] + 1;
      const int end = partition < 0 ? length : std::min(length, begin + KEY_PARTITION);
      plan_.keys_read += std::max(0, end - (count > 1 ? shared : begin));
    }
  }

  const Step& step_;
  AttentionPlan& plan_;
  int block_size_, group_, tile_tokens_;
  std::vector<int> common_;  // keys that a short run shares with the next
  int64_t slots_ = 0;
};
