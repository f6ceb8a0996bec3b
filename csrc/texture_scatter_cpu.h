// Gradient of a texture on the CPU. Lookups are sorted by the square tile of texels that they touch; every tile is then
// summed in double precision, in the order of the lookups, in a buffer that fits the cache, and written once.
//
// So the sum on a texel is right to the last digits however many lookups meet there, it is the same for any number of
// threads, nothing is cleared or summed per thread, and random lookups into a large texture stay within the cache.
// A tile that very many lookups share is summed in parts, whose number depends on counts alone. A small texture is a
// single tile: its lookups are added as they come.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "core/launch.h"
#include "texture.h"

namespace diffrender {

constexpr int64_t kLookupsPerChunk = 8192, kMaxChunks = 128, kDirectParts = 16;
constexpr int64_t kDirectBytes = 256 << 10;  // a gradient below this size in double is one tile, and nothing is sorted
constexpr int64_t kEntriesPerRound = int64_t(1) << 23;  // bounds the memory of the sorted lookups
constexpr int64_t kEntriesPerPart = int64_t(1) << 16;
constexpr int64_t kTileBytes = 64 << 10;

// A square of texels, or a single one, whose weight stands in x.
template <class scalar_t, bool kMips>
struct TexelEntry {
  int32_t lookup;  // within its chunk
  int32_t texel;   // tap 0 within its tile; a single texel: -1 - texel
  scalar_t x, y;
};

// With mips a square has a share of its own.
template <class scalar_t>
struct TexelEntry<scalar_t, true> : TexelEntry<scalar_t, false> {
  scalar_t weight;
};

// All levels that take a gradient, cut into tiles.
template <class scalar_t>
struct TiledLevels {
  struct Level {
    scalar_t* grad;       // of item 0; null where nobody needs it
    int64_t item_stride;  // elements
    int32_t width, rows;  // texels; rows of all faces
    int32_t tiles_per_row, first_tile;
    int64_t first_texel;  // of all levels
  };
  std::vector<Level> levels;
  int64_t texel_count = 0;
  int32_t shift, tile_count = 0, channels;  // a tile has 2^shift texels a side

  explicit TiledLevels(int64_t channel_count) : channels(static_cast<int32_t>(channel_count)) {
    shift = 7;
    while (shift > 2 && (int64_t(sizeof(double)) * channel_count << (2 * shift)) > kTileBytes) --shift;
  }

  void add(scalar_t* grad, int64_t item_stride, int32_t width, int32_t rows) {
    const int32_t side = 1 << shift, per_row = (width + side - 1) >> shift, per_column = (rows + side - 1) >> shift;
    levels.push_back({grad, item_stride, width, rows, per_row, tile_count, texel_count});
    texel_count += static_cast<int64_t>(width) * rows;
    if (grad != nullptr) tile_count += per_row * per_column;
  }
};

// The entries of a chunk of lookups in their order, and their runs within one tile, sorted by tile. Neighbouring
// lookups mostly share their tile, so that runs are few.
template <class scalar_t, bool kMips>
struct TexelChunk {
  int64_t target, begin, end;  // lookups
  std::unique_ptr<TexelEntry<scalar_t, kMips>[]> entries;
  struct Run {
    int32_t begin, end;  // entries
  };
  std::unique_ptr<Run[]> runs;
  std::unique_ptr<int32_t[]> start;  // [tiles + 1] of the runs of each tile
};

template <class scalar_t, class Mapping, bool kMips>
class TextureScatter {
 public:
  using Sampler = TextureSampler<scalar_t, Mapping, kMips>;
  using Entry = TexelEntry<scalar_t, kMips>;
  using Chunk = TexelChunk<scalar_t, kMips>;

  // `targets` = number of gradients: the batch size, or 1 where the batch shares the texture.
  TextureScatter(const Sampler& sampler, const TiledLevels<scalar_t>& tiled, const scalar_t* grad_values,
                 int64_t targets, int64_t lookups)
      : sampler_(sampler), tiled_(tiled), grad_values_(grad_values), targets_(targets), lookups_(lookups) {}

  void run() {
    if (targets_ == 0 || tiled_.tile_count == 0 || tiled_.channels == 0) return;
    const int64_t texels = tiled_.texel_count;
    if (texels * tiled_.channels * int64_t(sizeof(double)) <= kDirectBytes) {
      switch (tiled_.channels) {
        case 1:
          add_directly<1>(texels);
          break;
        case 3:
          add_directly<3>(texels);
          break;
        case 4:
          add_directly<4>(texels);
          break;
        default:
          add_directly<0>(texels);
          break;
      }
      return;
    }
    const int64_t per_target = lookups_ / targets_;
    const int64_t count = std::clamp<int64_t>((per_target + kLookupsPerChunk - 1) / kLookupsPerChunk, 1, kMaxChunks);
    const int64_t per_lookup = sampler_.tap_count() * (sampler_.blends() ? 2 : 1);
    const int64_t per_chunk = std::max<int64_t>(per_lookup * per_target / count, 1);
    const int64_t per_round = std::max<int64_t>(kEntriesPerRound / per_chunk, 1);
    std::vector<Chunk> chunks;
    for (int64_t target = 0; target < targets_; ++target) {
      for (int64_t c = 0; c < count; ++c) {
        chunks.push_back({target, target * per_target + c * per_target / count,
                          target * per_target + (c + 1) * per_target / count, nullptr, nullptr});
      }
    }
    const int64_t total = static_cast<int64_t>(chunks.size());
    for (int64_t begin = 0; begin < total; begin += per_round) {
      const int64_t end = std::min(begin + per_round, total);
      parallel_tasks(end - begin, [&](int64_t i) { sort(&chunks[begin + i]); });
      for (int64_t first = begin; first < end;) {
        // Chunks of the same targets: either parts of one target, or whole targets.
        int64_t last = first;
        while (last < end && chunks[last].target == chunks[first].target) ++last;
        rounds_.push_back({first, last, first % count == 0});
        first = last;
      }
      add_tiles(chunks);
      rounds_.clear();
      for (int64_t i = begin; i < end; ++i) chunks[i].entries.reset(), chunks[i].runs.reset(), chunks[i].start.reset();
    }
  }

 private:
  // Chunks [first, last) of one target; `fresh`: nothing has been written to its gradient before.
  struct Round {
    int64_t first, last;
    bool fresh;
  };

  const Sampler& sampler_;
  const TiledLevels<scalar_t>& tiled_;
  const scalar_t* grad_values_;
  int64_t targets_, lookups_;
  std::vector<Round> rounds_;

  // A square of texels from `low` on, whose second row starts at `high`.
  template <int kChannels>
  static void add_square(double* low, double* high, int channels, double x, double y, double weight,
                         const scalar_t* g) {
    const int n = kChannels > 0 ? kChannels : channels;
    const double w_low = weight * (1 - y), w_high = weight * y;
    const double w00 = w_low * (1 - x), w10 = w_low * x, w01 = w_high * (1 - x), w11 = w_high * x;
#pragma omp simd
    for (int c = 0; c < n; ++c) {
      const double value = g[c];
      low[c] += w00 * value;
      high[c] += w01 * value;
    }
#pragma omp simd
    for (int c = 0; c < n; ++c) {
      const double value = g[c];
      low[n + c] += w10 * value;
      high[n + c] += w11 * value;
    }
  }

  // All levels of a small texture in one buffer for each part of the lookups.
  template <int kChannels>
  void add_directly(int64_t texels) const {
    const int n = kChannels > 0 ? kChannels : tiled_.channels;
    const int64_t per_target = lookups_ / targets_, size = texels * n;
    const int64_t useful = std::max<int64_t>(per_target / kLookupsPerChunk, 1);
    const int64_t parts = std::clamp<int64_t>(kDirectParts / targets_, 1, useful);
    const std::unique_ptr<double[]> sums(new double[parts > 1 ? targets_ * parts * size : 0]);
    parallel_tasks(targets_ * parts, [&](int64_t task) {
      const int64_t target = task / parts, part = task % parts;
      std::unique_ptr<double[]> own;
      double* buffer = sums.get() + task * size;
      if (parts == 1) {
        own.reset(new double[size]);
        buffer = own.get();
      }
      std::memset(buffer, 0, sizeof(double) * size);
      const int64_t start = target * per_target;
      sampler_.for_each_footprint(
          start + part * per_target / parts, start + (part + 1) * per_target / parts,
          [&](int64_t, int64_t first, int count, const auto& block, const auto& taps, int step) {
            for (int i = 0; i < count; ++i) {
              const auto& level = tiled_.levels[sampler_.level(block, i, step)];
              const scalar_t weight = sampler_.weight(block, i, step);
              if (level.grad == nullptr || !(weight > 0)) continue;
              const scalar_t* const g = grad_values_ + (first + i) * n;
              double* const texel = buffer + level.first_texel * n;
              if (taps.regular[i] > 0) {
                double* const low = texel + static_cast<int64_t>(taps.tap[0][i]) * n;
                add_square<kChannels>(low, low + static_cast<int64_t>(level.width) * n, n, taps.x[i], taps.y[i], weight,
                                      g);
                continue;
              }
              scalar_t weights[4];
              tap_weights(taps, i, weight, weights);
              for (int k = 0; k < 4; ++k) {
                if (taps.tap[k][i] < 0) continue;
                double* const single = texel + static_cast<int64_t>(taps.tap[k][i]) * n;
                const double w = weights[k];
                for (int c = 0; c < n; ++c) single[c] += w * g[c];
              }
            }
          });
      if (parts == 1) write_levels(target, buffer);
    });
    if (parts == 1) return;
    parallel_tasks(targets_, [&](int64_t target) {
      double* const sum = sums.get() + target * parts * size;
      for (int64_t part = 1; part < parts; ++part) {
        for (int64_t k = 0; k < size; ++k) sum[k] += sum[part * size + k];
      }
      write_levels(target, sum);
    });
  }

  void write_levels(int64_t target, const double* sums) const {
    for (const auto& level : tiled_.levels) {
      if (level.grad == nullptr) continue;
      const int64_t size = static_cast<int64_t>(level.width) * level.rows * tiled_.channels;
      const double* const in = sums + level.first_texel * tiled_.channels;
      scalar_t* const out = level.grad + target * level.item_stride;
      for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(in[k]);
    }
  }

  void sort(Chunk* chunk) const {
    struct FoundRun {
      int32_t tile, begin;
    };
    // Kept by each thread: fresh memory would cost more than what is done with it.
    static thread_local std::vector<Entry> found;
    static thread_local std::vector<FoundRun> runs;
    int64_t used = 0, run_count = 0;
    int32_t last_tile = -1;
    const int32_t side = 1 << tiled_.shift, within = side - 1;
    chunk->start.reset(new int32_t[tiled_.tile_count + 1]());
    int32_t* const start = chunk->start.get();
    const auto push = [&](int32_t tile, const Entry& entry) {
      if (tile != last_tile) {
        runs[run_count++] = {tile, static_cast<int32_t>(used)};
        ++start[tile];
        last_tile = tile;
      }
      found[used++] = entry;
    };
    sampler_.for_each_footprint(
        chunk->begin, chunk->end, [&](int64_t, int64_t first, int n, const auto& block, const auto& taps, int step) {
          if (used + 4 * n > static_cast<int64_t>(found.size())) {
            found.resize(std::max<int64_t>(2 * used, 2 * kLookupsPerChunk));
            runs.resize(found.size());
          }
          for (int i = 0; i < n; ++i) {
            const auto& level = tiled_.levels[sampler_.level(block, i, step)];
            const scalar_t weight = sampler_.weight(block, i, step);
            if (level.grad == nullptr || !(weight > 0)) continue;
            Entry entry;
            entry.lookup = static_cast<int32_t>(first + i - chunk->begin);
            if constexpr (kMips) entry.weight = weight;
            const int32_t column = taps.column[i] & within, row = taps.row[i] & within;
            if (taps.regular[i] > 0 && column < within && row < within) {
              entry.texel = (row << tiled_.shift) + column;
              entry.x = taps.x[i];
              entry.y = taps.y[i];
              push(level.first_tile + (taps.row[i] >> tiled_.shift) * level.tiles_per_row +
                       (taps.column[i] >> tiled_.shift),
                   entry);
              continue;
            }
            // Across tiles, or not a square: every texel by itself.
            scalar_t weights[4];
            tap_weights(taps, i, weight, weights);
            entry.y = 0;
            for (int k = 0; k < 4; ++k) {
              if (taps.tap[k][i] < 0 || weights[k] == 0) continue;
              const int32_t y = taps.tap[k][i] / level.width, x = taps.tap[k][i] - y * level.width;
              entry.texel = -1 - (((y & within) << tiled_.shift) + (x & within));
              entry.x = weights[k];
              push(level.first_tile + (y >> tiled_.shift) * level.tiles_per_row + (x >> tiled_.shift), entry);
            }
          }
        });
    chunk->entries.reset(new Entry[used]);
    std::copy(found.begin(), found.begin() + used, chunk->entries.get());
    int32_t sum = 0;
    for (int32_t t = 0; t <= tiled_.tile_count; ++t) {
      const int32_t here = start[t];
      start[t] = sum;
      sum += here;
    }
    chunk->runs.reset(new typename Chunk::Run[run_count]);
    for (int64_t r = 0; r < run_count; ++r) {
      const int32_t end = r + 1 < run_count ? runs[r + 1].begin : static_cast<int32_t>(used);
      chunk->runs[start[runs[r].tile]++] = {runs[r].begin, end};
    }
    // Every start has moved to the start of the next tile.
    for (int32_t t = tiled_.tile_count; t > 0; --t) start[t] = start[t - 1];
    start[0] = 0;
    if (found.size() > 16 * kLookupsPerChunk) found = {}, runs = {};
  }

  void add_tiles(const std::vector<Chunk>& chunks) const {
    const int64_t tiles = tiled_.tile_count;
    const int64_t buffer_size = static_cast<int64_t>(tiled_.channels) << (2 * tiled_.shift);
    // Tiles in several parts are rare: their sums wait until all parts are there.
    struct Shared {
      int64_t round;
      int32_t tile;
      int64_t parts, slot;
    };
    std::vector<Shared> shared;
    std::vector<uint8_t> waits(rounds_.size() * tiles, 0);
    int64_t slots = 0;
    for (size_t r = 0; r < rounds_.size(); ++r) {
      const auto [first, last, fresh] = rounds_[r];
      std::vector<int64_t> counts(tiles, 0);
      for (int64_t c = first; c < last; ++c) {
        const int32_t* const start = chunks[c].start.get();
        for (int64_t t = 0; t < tiles; ++t) {
          for (int32_t r = start[t]; r < start[t + 1]; ++r)
            counts[t] += chunks[c].runs[r].end - chunks[c].runs[r].begin;
        }
      }
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t parts = std::min((counts[t] + kEntriesPerPart - 1) / kEntriesPerPart, last - first);
        if (parts <= 1) continue;
        shared.push_back({static_cast<int64_t>(r), static_cast<int32_t>(t), parts, slots});
        waits[r * tiles + t] = 1;
        slots += parts;
      }
    }
    const std::unique_ptr<double[]> sums(new double[slots * buffer_size]);
    std::vector<std::pair<int64_t, int64_t>> parts;  // index into `shared`, part
    for (size_t s = 0; s < shared.size(); ++s) {
      for (int64_t p = 0; p < shared[s].parts; ++p) parts.push_back({static_cast<int64_t>(s), p});
    }
    parallel_tasks(static_cast<int64_t>(parts.size()), [&](int64_t i) {
      const Shared& tile = shared[parts[i].first];
      const auto [first, last, fresh] = rounds_[tile.round];
      const int64_t p = parts[i].second, n = last - first;
      double* const buffer = sums.get() + (tile.slot + p) * buffer_size;
      std::memset(buffer, 0, sizeof(double) * buffer_size);
      add_chunks(chunks, first + p * n / tile.parts, first + (p + 1) * n / tile.parts, tile.tile, buffer);
    });
    parallel_tasks(static_cast<int64_t>(shared.size()), [&](int64_t i) {
      const Shared& tile = shared[i];
      double* const sum = sums.get() + tile.slot * buffer_size;
      for (int64_t p = 1; p < tile.parts; ++p) {
        for (int64_t k = 0; k < buffer_size; ++k) sum[k] += sum[p * buffer_size + k];
      }
      const auto [first, last, fresh] = rounds_[tile.round];
      write(chunks[first].target, tile.tile, sum, fresh);
    });
    // Some tiles per task, so that a task clears its buffer into a cache that it warmed itself.
    parallel_ranges(static_cast<int64_t>(rounds_.size()) * tiles, 8, [&](int64_t begin, int64_t end) {
      std::unique_ptr<double[]> buffer;
      for (int64_t i = begin; i < end; ++i) {
        if (waits[i]) continue;
        const auto [first, last, fresh] = rounds_[i / tiles];
        const int32_t tile = static_cast<int32_t>(i % tiles);
        bool any = false;
        for (int64_t c = first; c < last && !any; ++c) any = chunks[c].start[tile + 1] > chunks[c].start[tile];
        if (any) {
          if (!buffer) buffer.reset(new double[buffer_size]);
          std::memset(buffer.get(), 0, sizeof(double) * buffer_size);
          add_chunks(chunks, first, last, tile, buffer.get());
          write(chunks[first].target, tile, buffer.get(), fresh);
        } else if (fresh) {
          write(chunks[first].target, tile, nullptr, true);
        }
      }
    });
  }

  void add_chunks(const std::vector<Chunk>& chunks, int64_t first, int64_t last, int32_t tile, double* buffer) const {
    for (int64_t c = first; c < last; ++c) {
      switch (tiled_.channels) {
        case 1:
          add<1>(chunks[c], tile, buffer);
          break;
        case 2:
          add<2>(chunks[c], tile, buffer);
          break;
        case 3:
          add<3>(chunks[c], tile, buffer);
          break;
        case 4:
          add<4>(chunks[c], tile, buffer);
          break;
        default:
          add<0>(chunks[c], tile, buffer);
          break;
      }
    }
  }

  template <int kChannels>
  void add(const Chunk& chunk, int32_t tile, double* buffer) const {
    for (int32_t r = chunk.start[tile]; r < chunk.start[tile + 1]; ++r) {
      add_run<kChannels>(chunk, chunk.runs[r].begin, chunk.runs[r].end, buffer);
    }
  }

  template <int kChannels>
  void add_run(const Chunk& chunk, int32_t begin, int32_t end, double* buffer) const {
    const int n = kChannels > 0 ? kChannels : tiled_.channels;
    const int64_t row = static_cast<int64_t>(n) << tiled_.shift;
    const scalar_t* const grad = grad_values_ + chunk.begin * n;
    for (int32_t e = begin; e < end; ++e) {
      const Entry& entry = chunk.entries[e];
      const scalar_t* const g = grad + static_cast<int64_t>(entry.lookup) * n;
      if (entry.texel < 0) {
        double* const texel = buffer + static_cast<int64_t>(-1 - entry.texel) * n;
        const double w = entry.x;
        for (int c = 0; c < n; ++c) texel[c] += w * g[c];
        continue;
      }
      double weight = 1;
      if constexpr (kMips) weight = entry.weight;
      double* const low = buffer + static_cast<int64_t>(entry.texel) * n;
      add_square<kChannels>(low, low + row, n, entry.x, entry.y, weight, g);
    }
  }

  // The sums of a tile (null: none) become its gradient, or are added to it.
  void write(int64_t target, int32_t tile, const double* sums, bool fresh) const {
    size_t l = tiled_.levels.size() - 1;
    while (tiled_.levels[l].grad == nullptr || tiled_.levels[l].first_tile > tile) --l;
    const auto& level = tiled_.levels[l];
    const int32_t side = 1 << tiled_.shift, n = tiled_.channels, index = tile - level.first_tile;
    const int32_t row0 = index / level.tiles_per_row << tiled_.shift;
    const int32_t column0 = index % level.tiles_per_row << tiled_.shift;
    const int64_t size = static_cast<int64_t>(std::min(side, level.width - column0)) * n;
    for (int32_t r = 0; r < std::min(side, level.rows - row0); ++r) {
      scalar_t* const out =
          level.grad + target * level.item_stride + (static_cast<int64_t>(row0 + r) * level.width + column0) * n;
      if (sums == nullptr) {
        std::memset(out, 0, sizeof(scalar_t) * size);
        continue;
      }
      const double* const in = sums + (static_cast<int64_t>(r) << tiled_.shift) * n;
      for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(fresh ? in[k] : out[k] + in[k]);
    }
  }
};

}  // namespace diffrender
