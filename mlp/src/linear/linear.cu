// What dense layers need apart from their products, and instead of an epilogue that the library
// does not have for a shape. Rows lie `stride` elements apart.

// Type of activations and their gradients: 0 is f32, 1 f16, 2 bf16.
#ifndef ELEMENT
#define ELEMENT 0
#endif

using Value = Element<ELEMENT>;
constexpr u32 THREADS = 256;

struct BiasArgs {
    Value *values;
    const float *bias;
    u64 stride;
    u64 rows;
    u64 cols;
    // Whether negative results become zero.
    u64 relu;
};

struct MaskAndSumArgs {
    Value *gradient;
    // What the ReLU has put out, or one bit an element for whether it was above zero; without
    // both, nothing is masked.
    const Value *output;
    const u8 *bits;
    // Sums of the columns, (blocks * parts) x cols, where they are wanted.
    float *sums;
    u64 gradient_stride;
    u64 output_stride;
    // In bytes.
    u64 bits_stride;
    u64 rows;
    u64 cols;
    // And those that fill a row up, which a product has written, too: they become zeros.
    u64 padded_cols;
    // Rows of a block, the last ones shorter or empty, and parts of each.
    u64 block_len;
    u64 blocks;
    u64 parts;
};

struct SumPartsArgs {
    const float *sums;
    float *d_bias;
    u64 stride;
    u64 cols;
    u64 blocks;
    u64 parts;
    // Whether to add to what d_bias holds.
    u64 accumulate;
};

struct TreeArgs {
    // Blocks of equally many rows, one under the other; used up.
    float *blocks;
    float *total;
    u64 blocks_stride;
    u64 total_stride;
    u64 rows;
    u64 cols;
    u64 count;
    // Whether to add to what the total holds.
    u64 accumulate;
};

// A matrix of f32 and its copy, rows filled up with zeros to `padded_cols`.
struct CopyArgs {
    const float *from;
    Value *to;
    u64 from_stride;
    u64 to_stride;
    u64 rows;
    u64 cols;
    u64 padded_cols;
};

constexpr u32 MAX_COPIES = 16;

// Several of them, one for each y of the grid.
struct CopiesArgs {
    CopyArgs copies[MAX_COPIES];
};

// Calls f(row, col) for all elements of a matrix. Threads stand side by side along a row, as many
// as it has elements, rounded up to a power of two, and on so many rows as a block has room for: so
// no thread divides.
template <class F> inline __device__ void for_each_element(u64 rows, u64 cols, F f) {
    u32 log = 0;
    while (log < 8 && (1u << log) < cols) {
        log++;
    }
    const u32 width = 1u << log;
    for (u64 row = (u64)blockIdx.x * (THREADS >> log) + (threadIdx.x >> log); row < rows;
         row += (u64)gridDim.x * (THREADS >> log)) {
        for (u64 col = threadIdx.x & (width - 1); col < cols; col += width) {
            f(row, col);
        }
    }
}

// Adds a bias to each row, and applies the activation.
extern "C" __global__ void __launch_bounds__(THREADS) add_bias(const BiasArgs a) {
    for_each_element(a.rows, a.cols, [&](u64 row, u64 col) {
        Value &value = a.values[row * a.stride + col];
        const float sum = to_float(value) + a.bias[col];
        // A NaN stays one.
        value = from_float<Value>(a.relu && sum <= 0.0f ? 0.0f : sum);
    });
}

// The number in the lower bits of a word.
inline __device__ float in_word(float, u32 bits) { return __uint_as_float(bits); }
template <class T> inline __device__ float in_word(T, u32 bits) {
    return to_float(T{static_cast<u16>(bits)});
}

// Neighbours in a row that are loaded and stored as one: sixteen bytes.
struct Wide {
    static constexpr u32 COUNT = 16 / sizeof(Value);
    static constexpr u32 IN_WORD = COUNT / 4;
    u32x4 words;

    static inline __device__ Wide load(const Value *from) {
        return Wide{load16(from)};
    }
    inline __device__ void store(Value *to) const { store16_at_once(to, words); }
    inline __device__ u32 word(u32 index) const {
        return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
    }
    inline __device__ float at(u32 index) const {
        const u32 bits = word(index / IN_WORD);
        return in_word(Value{}, bits >> 16 * (index % IN_WORD));
    }
    inline __device__ void keep(u32 bits) {
        words = u32x4{words.x & kept(bits, 0), words.y & kept(bits, 1), words.z & kept(bits, 2),
                      words.w & kept(bits, 3)};
    }
    // Ones where the elements of a word are kept.
    static inline __device__ u32 kept(u32 bits, u32 index) {
        const u32 first = 0u - (bits >> index * IN_WORD & 1);
        const u32 second = 0u - (bits >> (index * IN_WORD + IN_WORD - 1) & 1);
        return IN_WORD == 1 ? first : (first & 0x0000ffffu) | (second & 0xffff0000u);
    }
};

// One element, where rows do not start at multiples of sixteen bytes.
struct Single {
    static constexpr u32 COUNT = 1;
    Value value;

    static inline __device__ Single load(const Value *from) { return Single{*from}; }
    inline __device__ void store(Value *to) const { *to = value; }
    inline __device__ float at(u32) const { return to_float(value); }
    inline __device__ void keep(u32 bits) {
        value = bits & 1 ? value : from_float<Value>(0.0f);
    }
};

// Which of the elements of a row from `col` on the ReLU let pass: the derivative by its output.
// None of those behind the last column.
template <class Piece>
inline __device__ u32 passed(const MaskAndSumArgs &a, u64 row, u64 col) {
    if (col >= a.cols) {
        return 0;
    }
    const u32 left = a.cols - col < Piece::COUNT ? (u32)(a.cols - col) : Piece::COUNT;
    const u32 inside = (1u << left) - 1;
    if (a.bits) {
        return a.bits[row * a.bits_stride + col / 8] >> (col % 8) & inside;
    }
    const Piece output = Piece::load(a.output + row * a.output_stride + col);
    u32 bits = 0;
#pragma unroll
    for (u32 i = 0; i < Piece::COUNT; i++) {
        bits |= output.at(i) > 0.0f ? 1u << i : 0;
    }
    return bits & inside;
}

// A block takes a part of the rows and as many columns as 32 threads hold; threads that have the
// same columns take the rows in turn, four at once, so that loads are under way while others wait.
template <class Piece> inline __device__ void mask_and_sum_of(const MaskAndSumArgs &a) {
    constexpr u32 COUNT = Piece::COUNT, AT_ONCE = 4;
    __shared__ float shared[THREADS * COUNT];
    const u64 pieces = ceil_div<u64>(a.padded_cols, COUNT);
    u32 log = 0;
    while (log < 5 && (1u << log) < pieces) {
        log++;
    }
    const u32 width = 1u << log, turns = THREADS >> log, turn = threadIdx.x >> log;
    const u64 tiles = ceil_div<u64>(pieces, width);
    for (u64 item = blockIdx.x; item < tiles * a.parts * a.blocks; item += gridDim.x) {
        const u64 tile = item % tiles, all_parts = item / tiles;
        const u64 part = all_parts % a.parts, start = all_parts / a.parts * a.block_len;
        const u64 first = start < a.rows ? start : a.rows;
        const u64 len = a.rows - first < a.block_len ? a.rows - first : a.block_len;
        const u64 end = first + len * (part + 1) / a.parts;
        const u64 col = (tile * width + (threadIdx.x & (width - 1))) * COUNT;
        float sums[COUNT] = {};
        for (u64 row = first + len * part / a.parts + turn; col < a.padded_cols && row < end;
             row += AT_ONCE * turns) {
            Piece gradients[AT_ONCE];
            u32 bits[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const u64 at = row + i * turns < end ? row + i * turns : row;
                gradients[i] = Piece::load(a.gradient + at * a.gradient_stride + col);
                bits[i] = a.bits || a.output ? passed<Piece>(a, at, col) : ~0u;
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const u64 at = row + i * turns;
                if (at < end) {
                    gradients[i].keep(bits[i]);
                    if (a.bits || a.output) {
                        gradients[i].store(a.gradient + at * a.gradient_stride + col);
                    }
#pragma unroll
                    for (u32 j = 0; j < COUNT; j++) {
                        sums[j] += gradients[i].at(j);
                    }
                }
            }
        }
        if (a.sums) {
#pragma unroll
            for (u32 j = 0; j < COUNT; j++) {
                shared[threadIdx.x * COUNT + j] = sums[j];
            }
            __syncthreads();
            for (u32 at = threadIdx.x; at < width * COUNT; at += THREADS) {
                float sum = 0.0f;
                for (u32 i = 0; i < turns; i++) {
                    sum += shared[i * width * COUNT + at];
                }
                const u64 of = tile * width * COUNT + at;
                if (of < a.cols) {
                    a.sums[all_parts * a.cols + of] = sum;
                }
            }
            // These sums are read before the next item's are stored over them.
            __syncthreads();
        }
    }
}

// Zeros in the gradient where the ReLU let nothing pass, and sums of its columns over parts of the
// rows, in a fixed order: both in one pass over it.
extern "C" __global__ void __launch_bounds__(THREADS) mask_and_sum(const MaskAndSumArgs a) {
    mask_and_sum_of<Wide>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS) mask_and_sum_singles(const MaskAndSumArgs a) {
    mask_and_sum_of<Single>(a);
}

// Adds up the parts of each block: a block of threads takes eight columns, a sector, and its 32
// rows of threads the parts in turn, four at once.
extern "C" __global__ void __launch_bounds__(THREADS) sum_parts(const SumPartsArgs a) {
    constexpr u32 COLS = 8, TURNS = THREADS / COLS, AT_ONCE = 4;
    __shared__ float shared[THREADS];
    const u32 lane = threadIdx.x % COLS, turn = threadIdx.x / COLS;
    const u64 groups = ceil_div<u64>(a.cols, COLS);
    for (u64 item = blockIdx.x; item < groups * a.blocks; item += gridDim.x) {
        const u64 block = item / groups, col = item % groups * COLS + lane;
        float sum = 0.0f;
        for (u64 part = turn; col < a.cols && part < a.parts; part += AT_ONCE * TURNS) {
            float sums[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const u64 at = part + i * TURNS;
                sums[i] = at < a.parts ? a.sums[(block * a.parts + at) * a.cols + col] : 0.0f;
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                sum += sums[i];
            }
        }
        shared[threadIdx.x] = sum;
        for (u32 distance = THREADS / 2; distance >= COLS; distance /= 2) {
            // What a thread adds, another has stored.
            __syncthreads();
            if (threadIdx.x < distance) {
                shared[threadIdx.x] += shared[threadIdx.x + distance];
            }
        }
        if (turn == 0 && col < a.cols) {
            float &total = a.d_bias[block * a.stride + col];
            total = a.accumulate ? total + shared[lane] : shared[lane];
        }
        // The first threads have read their sums before the next item's are stored over them.
        __syncthreads();
    }
}

// Adds up blocks in the fixed tree of the sums over samples: neighbours first, then pairs of those.
extern "C" __global__ void __launch_bounds__(THREADS) add_blocks(const TreeArgs a) {
    for_each_element(a.rows, a.cols, [&](u64 row, u64 col) {
        float *blocks = a.blocks + row * a.blocks_stride + col;
        const u64 step = a.rows * a.blocks_stride;
        for (u64 distance = 1; distance < a.count; distance *= 2) {
            for (u64 into = 0; into + distance < a.count; into += 2 * distance) {
                blocks[into * step] += blocks[(into + distance) * step];
            }
        }
        float &total = a.total[row * a.total_stride + col];
        total = a.accumulate ? total + blocks[0] : blocks[0];
    });
}

// Rounds matrices of f32 to Value.
extern "C" __global__ void __launch_bounds__(THREADS) copy_rounded(const CopiesArgs a) {
    const CopyArgs &copy = a.copies[blockIdx.y];
    for_each_element(copy.rows, copy.padded_cols, [&](u64 row, u64 col) {
        const float value = col < copy.cols ? copy.from[row * copy.from_stride + col] : 0.0f;
        copy.to[row * copy.to_stride + col] = from_float<Value>(value);
    });
}
