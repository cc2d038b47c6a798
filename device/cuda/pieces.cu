// Copies of pieces that a list names.

// `Piece` in src/cuda/pieces.rs.
struct Piece {
  const u32* from;
  u32* to;
  u32* also;  // may be null
  u64 words;
};

// `PiecesArgs` in src/cuda/pieces.rs.
struct PiecesArgs {
  const Piece* pieces;
};

// A row of blocks for each piece. Sixteen bytes at a time where all places allow it, then words.
extern "C" __global__ void __launch_bounds__(256) copy_pieces(const PiecesArgs a) {
  const Piece piece = a.pieces[blockIdx.y];
  const u64 places = reinterpret_cast<u64>(piece.from) | reinterpret_cast<u64>(piece.to) |
                     reinterpret_cast<u64>(piece.also);
  const u64 fours = places % 16 == 0 ? piece.words / 4 : 0;
  for (u64 four = grid_thread(); four < fours; four += grid_threads()) {
    const u32x4 value = load16(piece.from + 4 * four);
    store16(piece.to + 4 * four, value);
    if (piece.also) store16(piece.also + 4 * four, value);
  }
  for (u64 word = 4 * fours + grid_thread(); word < piece.words; word += grid_threads()) {
    const u32 value = piece.from[word];
    piece.to[word] = value;
    if (piece.also) piece.also[word] = value;
  }
}
