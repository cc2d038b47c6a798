//! Tiles of matrices, handed to the tasks of a pool so that no two tasks hold the same element.

use headlong_device::MatMut;
use headlong_device::pool::{Pool, SharedMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// A rectangle of a matrix that one task owns for the time of its call.
#[derive(Debug)]
pub struct Tile<'a, T = f32> {
    /// The first element; rows start `stride` elements apart.
    pub start: *mut T,
    /// First row of the tile in the matrix.
    pub first_row: usize,
    /// First column of the tile in the matrix.
    pub first_col: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Elements from one row's start to the next.
    pub stride: usize,
    /// The elements of a list next to the matrix that belong to the tile's rows; the tiles of the
    /// first column have them.
    pub row_values: Option<&'a mut [f32]>,
    owner: PhantomData<&'a mut [T]>,
}

impl<'a, T> Tile<'a, T> {
    /// The columns from `first` on, as many as `sums`, a dense matrix, has room for: their elements
    /// are there.
    pub fn columns_in<'b>(&self, first: usize, sums: &'b mut [MaybeUninit<f32>]) -> Tile<'b> {
        let cols = sums.len() / self.rows;
        Tile {
            start: sums.as_mut_ptr().cast(),
            first_row: self.first_row,
            first_col: self.first_col + first,
            rows: self.rows,
            cols,
            stride: cols,
            row_values: None,
            owner: PhantomData,
        }
    }

    /// Columns `first .. first + count` of row `row`.
    pub fn row_mut(&mut self, row: usize, first: usize, count: usize) -> &mut [T] {
        assert!(row < self.rows && first + count <= self.cols, "a part of the tile");
        // SAFETY: the tile owns it, by the line above.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride + first), count) }
    }
}

/// Cuts `matrix` into tiles of `tile_rows × tile_cols` (those at the edges may be smaller) and
/// calls `body` for each.
///
/// Tiles of one band of rows follow each other, so that a thread that takes neighbours finds its
/// rows still near. The tiles of the first column also get their rows' elements of `row_values`.
pub fn for_each_tile<T: Send>(
    pool: &Pool,
    mut matrix: MatMut<'_, T>,
    row_values: Option<&mut [f32]>,
    (tile_rows, tile_cols): (usize, usize),
    body: &(dyn Fn(Tile<'_, T>) + Sync),
) {
    assert!(tile_rows > 0 && tile_cols > 0, "tiles hold at least one element");
    let (rows, cols, stride) = (matrix.rows(), matrix.cols(), matrix.stride());
    let across = cols.div_ceil(tile_cols);
    let base = SharedMut::new(matrix.data_mut());
    assert!(
        row_values.as_ref().is_none_or(|row_values| row_values.len() == rows),
        "one element for each row"
    );
    let row_values = row_values.map(SharedMut::new);
    pool.run(rows.div_ceil(tile_rows) * across, &|task| {
        let (first_row, first_col) = (task / across * tile_rows, task % across * tile_cols);
        // SAFETY: the tile's first row and column are inside the matrix, so the offset is inside
        // its data.
        let start = unsafe { base.at(first_row * stride + first_col) };
        let count = tile_rows.min(rows - first_row);
        // SAFETY: the rows of this tile, of which no other tile of the first column has any.
        let row_values = row_values
            .filter(|_| first_col == 0)
            .map(|list| unsafe { list.slice(first_row, count) });
        body(Tile {
            start,
            first_row,
            first_col,
            rows: count,
            cols: tile_cols.min(cols - first_col),
            stride,
            row_values,
            owner: PhantomData,
        });
    });
}

/// Calls `body(index, row)` for each row of `matrix`, `tile_rows` rows a task.
pub fn for_each_row<T: Send>(
    pool: &Pool,
    mut matrix: MatMut<'_, T>,
    tile_rows: usize,
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    assert!(tile_rows > 0, "bands hold at least one row");
    let rows = matrix.rows();
    let bands = Bands::new(&mut matrix);
    pool.run(rows.div_ceil(tile_rows), &|task| {
        let first = task * tile_rows;
        let count = tile_rows.min(rows - first);
        // SAFETY: each task is handed out once, and bands of different tasks share no row.
        let mut band = unsafe { bands.rows(first, count) };
        (0..count).for_each(|row| body(first + row, band.row_mut(row)));
    });
}

/// As [`for_each_row`], for the rows of two matrices of equally many.
pub fn for_each_row_of_two<T: Send, U: Send>(
    pool: &Pool,
    (mut first, mut second): (MatMut<'_, T>, MatMut<'_, U>),
    tile_rows: usize,
    body: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    assert!(tile_rows > 0, "bands hold at least one row");
    assert_eq!(first.rows(), second.rows(), "matrices that are cut alike have equally many rows");
    let rows = first.rows();
    let (one, other) = (Bands::new(&mut first), Bands::new(&mut second));
    pool.run(rows.div_ceil(tile_rows), &|task| {
        let first = task * tile_rows;
        let count = tile_rows.min(rows - first);
        // SAFETY: each task is handed out once, and bands of different tasks share no row.
        let (mut one, mut other) = unsafe { (one.rows(first, count), other.rows(first, count)) };
        (0..count).for_each(|row| body(first + row, one.row_mut(row), other.row_mut(row)));
    });
}

/// A matrix of which several threads hold different rows.
struct Bands<T> {
    base: SharedMut<T>,
    cols: usize,
    stride: usize,
}

impl<T> Bands<T> {
    fn new(matrix: &mut MatMut<'_, T>) -> Self {
        let (cols, stride) = (matrix.cols(), matrix.stride());
        Self { base: SharedMut::new(matrix.data_mut()), cols, stride }
    }

    /// The rows `first .. first + count`, of which there is at least one.
    ///
    /// # Safety
    /// The rows lie inside the matrix, it is still borrowed, and no other view of them is alive.
    unsafe fn rows<'a>(&self, first: usize, count: usize) -> MatMut<'a, T> {
        let len = (count - 1) * self.stride + self.cols;
        // SAFETY: passed on to the caller.
        let data = unsafe { self.base.slice(first * self.stride, len) };
        MatMut::with_stride(data, count, self.cols, self.stride)
    }
}

/// Cuts three lists alike into chunks of `chunk_len` and calls `body(first element, chunks)` for
/// each.
///
/// The second and third may be empty, and then so are their chunks.
pub fn for_each_chunk_of_three(
    pool: &Pool,
    lists: [&mut [f32]; 3],
    chunk_len: usize,
    body: &(dyn Fn(usize, [&mut [f32]; 3]) + Sync),
) {
    assert!(chunk_len > 0, "chunks hold at least one element");
    let len = lists[0].len();
    let lens = [len, lists[1].len(), lists[2].len()];
    assert!(lens.iter().all(|&other| other == len || other == 0), "lists of {lens:?} elements");
    let bases = lists.map(SharedMut::new);
    pool.run(len.div_ceil(chunk_len), &|task| {
        let first = task * chunk_len;
        let count = chunk_len.min(len - first);
        let parts = std::array::from_fn(|list| match lens[list] {
            0 => &mut [][..],
            // SAFETY: the range is inside the list, each task is handed out once, and their ranges
            // are disjoint.
            _ => unsafe { bases[list].slice(first, count) },
        });
        body(first, parts);
    });
}
