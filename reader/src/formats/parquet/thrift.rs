//! Metadata and page headers, walked before the Parquet crate reads them.
//!
//! The crate believes what they say: it reads a known field whatever its type, passes over as many
//! truth values as a list claims (they take no bytes), and takes memory for as many children as a
//! column claims. What passes here is read in time and memory that are proportional to its bytes.

use std::result::Result;

/// The deepest nesting, of fields and of columns.
const MOST_DEPTH: usize = 32;

const BYTE: u8 = 3;
const I16: Shape = Shape::Plain(4);
const I32: Shape = Shape::Plain(5);
const I64: Shape = Shape::Plain(6);
const DOUBLE: Shape = Shape::Plain(7);
const BYTES: Shape = Shape::Plain(8);
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Why a walk ended.
#[derive(Debug)]
pub(super) enum Fault {
    /// There are no more bytes.
    Short,
    Bad(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short => to.write_str("it ends too early, or claims to be longer than it is"),
            Self::Bad(what) => to.write_str(what),
        }
    }
}

/// What the crate takes a field for.
enum Shape {
    /// It passes over the field, by the type that the field says.
    Any,
    Bool,
    /// A value of this type of Thrift's compact protocol.
    Plain(u8),
    List(&'static Shape),
    Struct(&'static Fields),
}

/// The fields that the crate knows of a structure, and those whose numbers are noted.
struct Fields(&'static [(i16, Shape)], &'static [i16]);

static EMPTY: Fields = Fields(&[], &[]);

static FILE: Fields = Fields(
    &[
        (1, I32),
        (2, Shape::List(&Shape::Struct(&SCHEMA_ELEMENT))),
        (3, I64),
        (4, Shape::List(&Shape::Struct(&ROW_GROUP))),
        (5, Shape::List(&Shape::Struct(&KEY_VALUE))),
        (6, BYTES),
        (7, Shape::List(&Shape::Struct(&COLUMN_ORDER))),
    ],
    &[],
);

/// Its number of children is noted.
static SCHEMA_ELEMENT: Fields = Fields(
    &[
        (1, I32),
        (2, I32),
        (3, I32),
        (4, BYTES),
        (5, I32),
        (6, I32),
        (7, I32),
        (8, I32),
        (9, I32),
        (10, Shape::Struct(&LOGICAL_TYPE)),
    ],
    &[5],
);

static LOGICAL_TYPE: Fields = Fields(
    &[
        (1, Shape::Struct(&EMPTY)),
        (2, Shape::Struct(&EMPTY)),
        (3, Shape::Struct(&EMPTY)),
        (4, Shape::Struct(&EMPTY)),
        (5, Shape::Struct(&Fields(&[(1, I32), (2, I32)], &[]))),
        (6, Shape::Struct(&EMPTY)),
        (7, Shape::Struct(&TIME)),
        (8, Shape::Struct(&TIME)),
        (10, Shape::Struct(&Fields(&[(1, Shape::Plain(BYTE)), (2, Shape::Bool)], &[]))),
        (11, Shape::Struct(&EMPTY)),
        (12, Shape::Struct(&EMPTY)),
        (13, Shape::Struct(&EMPTY)),
        (14, Shape::Struct(&EMPTY)),
        (15, Shape::Struct(&EMPTY)),
        (16, Shape::Struct(&Fields(&[(1, Shape::Plain(BYTE))], &[]))),
        (17, Shape::Struct(&Fields(&[(1, BYTES)], &[]))),
        (18, Shape::Struct(&Fields(&[(1, BYTES), (2, I32)], &[]))),
        (19, Shape::Struct(&EMPTY)),
    ],
    &[],
);

static TIME: Fields = Fields(&[(1, Shape::Bool), (2, Shape::Struct(&TIME_UNIT))], &[]);
static TIME_UNIT: Fields = Fields(
    &[(1, Shape::Struct(&EMPTY)), (2, Shape::Struct(&EMPTY)), (3, Shape::Struct(&EMPTY))],
    &[],
);
static KEY_VALUE: Fields = Fields(&[(1, BYTES), (2, BYTES)], &[]);
static COLUMN_ORDER: Fields = Fields(
    &[(1, Shape::Struct(&EMPTY)), (2, Shape::Struct(&EMPTY)), (3, Shape::Struct(&EMPTY))],
    &[],
);

static ROW_GROUP: Fields = Fields(
    &[
        (1, Shape::List(&Shape::Struct(&COLUMN_CHUNK))),
        (2, I64),
        (3, I64),
        (4, Shape::List(&Shape::Struct(&SORTING_COLUMN))),
        (5, I64),
        (7, I16),
    ],
    &[],
);

static SORTING_COLUMN: Fields = Fields(&[(1, I32), (2, Shape::Bool), (3, Shape::Bool)], &[]);

static COLUMN_CHUNK: Fields = Fields(
    &[(1, BYTES), (2, I64), (3, Shape::Struct(&COLUMN)), (4, I64), (5, I32), (6, I64), (7, I32)],
    &[],
);

static COLUMN: Fields = Fields(
    &[
        (1, I32),
        (2, Shape::List(&I32)),
        (4, I32),
        (5, I64),
        (6, I64),
        (7, I64),
        (9, I64),
        (10, I64),
        (11, I64),
        (12, Shape::Struct(&STATISTICS)),
        (13, Shape::List(&Shape::Struct(&ENCODING_STATISTICS))),
        (14, I64),
        (15, I32),
        (16, Shape::Struct(&SIZE_STATISTICS)),
        (17, Shape::Struct(&PLACES)),
    ],
    &[],
);

static STATISTICS: Fields = Fields(
    &[
        (1, BYTES),
        (2, BYTES),
        (3, I64),
        (4, I64),
        (5, BYTES),
        (6, BYTES),
        (7, Shape::Bool),
        (8, Shape::Bool),
        (9, I64),
    ],
    &[],
);

static ENCODING_STATISTICS: Fields = Fields(&[(1, I32), (2, I32), (3, I32)], &[]);
static SIZE_STATISTICS: Fields =
    Fields(&[(1, I64), (2, Shape::List(&I64)), (3, Shape::List(&I64))], &[]);
static PLACES: Fields = Fields(&[(1, Shape::Struct(&BOX)), (2, Shape::List(&I32))], &[]);
static BOX: Fields = Fields(
    &[
        (1, DOUBLE),
        (2, DOUBLE),
        (3, DOUBLE),
        (4, DOUBLE),
        (5, DOUBLE),
        (6, DOUBLE),
        (7, DOUBLE),
        (8, DOUBLE),
    ],
    &[],
);

/// Its bytes once it is decompressed are noted.
static PAGE: Fields = Fields(
    &[
        (1, I32),
        (2, I32),
        (3, I32),
        (4, I32),
        (5, Shape::Struct(&DATA_PAGE)),
        (6, Shape::Struct(&EMPTY)),
        (7, Shape::Struct(&Fields(&[(1, I32), (2, I32), (3, Shape::Bool)], &[]))),
        (8, Shape::Struct(&DATA_PAGE_V2)),
    ],
    &[2],
);

static DATA_PAGE: Fields =
    Fields(&[(1, I32), (2, I32), (3, I32), (4, I32), (5, Shape::Struct(&STATISTICS))], &[]);
/// The bytes of its levels are noted.
static DATA_PAGE_V2: Fields = Fields(
    &[
        (1, I32),
        (2, I32),
        (3, I32),
        (4, I32),
        (5, I32),
        (6, I32),
        (7, Shape::Bool),
        (8, Shape::Struct(&STATISTICS)),
    ],
    &[5, 6],
);

/// Checks a file's metadata.
pub(super) fn check_metadata(bytes: &[u8]) -> Result<(), Fault> {
    let mut walk = Walk { rest: bytes, noted: Vec::new() };
    walk.fields(&FILE, MOST_DEPTH)?;
    check_tree(&walk.noted)
}

/// What a page's header says, and the bytes that it takes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub length: usize,
    /// The bytes of the page once it is decompressed.
    pub size: u64,
    /// The bytes of it that are not compressed: levels, which come first in a page of the second
    /// version.
    pub levels: usize,
}

/// The header of a page.
pub(super) fn page_header(bytes: &[u8]) -> Result<PageHeader, Fault> {
    let mut walk = Walk { rest: bytes, noted: Vec::new() };
    walk.fields(&PAGE, MOST_DEPTH)?;
    let bytes_of = |number: i32, what: &str| {
        usize::try_from(number).map_err(|_| Fault::Bad(format!("{what} of {number} bytes")))
    };
    let mut numbers = walk.noted.iter().rev().copied();
    let size = bytes_of(numbers.next().unwrap_or(0), "a page")? as u64;
    let mut levels = 0;
    for number in numbers.take(2) {
        levels += bytes_of(number, "levels")?;
    }
    Ok(PageHeader { length: bytes.len() - walk.rest.len(), size, levels })
}

/// Whether the numbers of children are those of one tree, a node before its children.
fn check_tree(children: &[i32]) -> Result<(), Fault> {
    let mut open = Vec::new();
    for (index, &count) in children.iter().enumerate() {
        match open.last_mut() {
            Some(left) => *left -= 1,
            None if index == 0 => {}
            None => return Err(Fault::Bad("columns: expected one root, found more".to_owned())),
        }
        if count < 0 {
            return Err(Fault::Bad(format!("a column of {count} columns")));
        }
        if count > 0 {
            open.push(count);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.len() > MOST_DEPTH {
            return Err(Fault::Bad(format!("columns are nested deeper than {MOST_DEPTH}")));
        }
    }
    match open.last() {
        None => Ok(()),
        Some(left) => Err(Fault::Bad(format!("columns: expected {left} more than there are"))),
    }
}

fn byte(rest: &mut &[u8]) -> Result<u8, Fault> {
    let (first, left) = rest.split_first().ok_or(Fault::Short)?;
    *rest = left;
    Ok(*first)
}

/// A number of seven bits a byte, which is taken from the front of `rest`.
pub(super) fn varint(rest: &mut &[u8]) -> Result<u64, Fault> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = byte(rest)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Fault::Bad("a number is too long".to_owned()))
}

/// The number with a sign that `value` stands for.
pub(super) fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

struct Walk<'a> {
    rest: &'a [u8],
    /// The numbers of noted fields, 0 where one is missing.
    noted: Vec<i32>,
}

impl Walk<'_> {
    fn byte(&mut self) -> Result<u8, Fault> {
        byte(&mut self.rest)
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        varint(&mut self.rest)
    }

    fn number(&mut self) -> Result<i64, Fault> {
        self.varint().map(zigzag)
    }

    fn pass(&mut self, bytes: u64) -> Result<(), Fault> {
        let bytes = usize::try_from(bytes).map_err(|_| Fault::Short)?;
        self.rest = self.rest.get(bytes..).ok_or(Fault::Short)?;
        Ok(())
    }

    /// Walks a structure's fields.
    fn fields(&mut self, Fields(known, to_note): &Fields, depth: usize) -> Result<(), Fault> {
        let (mut last, mut noted) = (0_i16, vec![0; to_note.len()]);
        loop {
            let head = self.byte()?;
            if head & 15 == 0 {
                break;
            }
            last = match i16::from(head >> 4) {
                0 => self.number()? as i16,
                further => last
                    .checked_add(further)
                    .ok_or_else(|| Fault::Bad("a field's number is too high".to_owned()))?,
            };
            let shape =
                known.iter().find(|(id, _)| *id == last).map_or(&Shape::Any, |(_, shape)| shape);
            let number = self.value(head & 15, shape, depth)?;
            if let Some(place) = to_note.iter().position(|id| *id == last) {
                noted[place] = number as i32;
            }
        }
        self.noted.append(&mut noted);
        Ok(())
    }

    /// Walks a value of a type; says its number, where it is one.
    fn value(&mut self, kind: u8, shape: &Shape, depth: usize) -> Result<i64, Fault> {
        let fits = match shape {
            Shape::Any => true,
            Shape::Bool => matches!(kind, 1 | 2),
            Shape::Plain(expected) => kind == *expected,
            Shape::List(_) => kind == LIST,
            Shape::Struct(_) => kind == STRUCT,
        };
        if !fits {
            return Err(Fault::Bad(format!("a field of the type {kind}, which is not its type")));
        }
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Fault::Bad(format!("fields are nested deeper than {MOST_DEPTH}")));
        };
        match kind {
            1 | 2 => {}
            BYTE => self.pass(1)?,
            4..=6 => return self.number(),
            7 => self.pass(8)?,
            8 => {
                let length = self.varint()?;
                self.pass(length)?;
            }
            LIST | 10 => self.list(shape, depth)?,
            11 => self.map(depth)?,
            STRUCT => {
                let known = if let Shape::Struct(known) = shape { known } else { &EMPTY };
                self.fields(known, depth)?;
            }
            13 => self.pass(16)?,
            _ => return Err(Fault::Bad(format!("a field of the type {kind}: there is none"))),
        }
        Ok(0)
    }

    fn list(&mut self, shape: &Shape, depth: usize) -> Result<(), Fault> {
        let head = self.byte()?;
        let count = match u64::from(head >> 4) {
            15 => self.varint()?,
            few => few,
        };
        let of = if let Shape::List(of) = shape { of } else { &Shape::Any };
        self.elements(count, &[(head & 15, of)], depth)
    }

    fn map(&mut self, depth: usize) -> Result<(), Fault> {
        let count = self.varint()?;
        let kinds = if count > 0 { self.byte()? } else { 0 };
        self.elements(count, &[(kinds >> 4, &Shape::Any), (kinds & 15, &Shape::Any)], depth)
    }

    /// Walks the elements of a list or map. Nothing in Parquet's own metadata is a list of truth
    /// values.
    fn elements(&mut self, count: u64, of: &[(u8, &Shape)], depth: usize) -> Result<(), Fault> {
        if count > self.rest.len() as u64 {
            return Err(Fault::Short);
        }
        if count > 0 && of.iter().any(|(kind, _)| matches!(kind, 1 | 2)) {
            return Err(Fault::Bad("a list of truth values".to_owned()));
        }
        for _ in 0..count {
            for (kind, shape) in of {
                self.value(*kind, shape, depth)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<T: std::fmt::Debug>(of: Result<T, Fault>) -> String {
        of.unwrap_err().to_string()
    }

    #[test]
    fn the_size_of_a_page_is_read_from_its_header() {
        // Type 0, 300 bytes, 200 stored.
        let header = [0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0x90, 0x03, 0, 7];
        assert_eq!(page_header(&header).unwrap(), PageHeader { length: 9, size: 300, levels: 0 });
        // The same, of the second version: levels of 5 and 3 bytes.
        let second = [&header[..8], &[0x5c, 0x55, 10, 0x15, 6, 0, 0]].concat();
        assert_eq!(page_header(&second).unwrap(), PageHeader { length: 15, size: 300, levels: 8 });
        assert!(matches!(page_header(&header[..8]), Err(Fault::Short)));
        assert_eq!(words(page_header(&[0x15, 0x00, 0x15, 0x01, 0])), "a page of -1 bytes");
        assert!(words(page_header(&[0x15, 0x00, 0x16, 0x02, 0])).contains("not its type"));
        assert_eq!(words(page_header(&[0xff; 20])), "a field of the type 15: there is none");
        assert_eq!(words(page_header(&[0x15, 0x80, 0x80, 0x80, 0x80])), Fault::Short.to_string());
    }

    #[test]
    fn what_takes_time_or_memory_without_bytes_is_refused() {
        // An unknown field: a list of 2 billion truth values, and one in a list.
        assert_eq!(words(check_metadata(&[0xf9, 0xf1, 2])), Fault::Short.to_string());
        assert_eq!(words(check_metadata(&[0xf9, 0x21, 0, 0, 0])), "a list of truth values");
        assert_eq!(words(check_metadata(&[0xfb, 2, 0x12, 0, 0, 0])), "a list of truth values");
        let deep = [&[0xf9][..], &[0x19; 40], &[0; 40]].concat();
        assert_eq!(words(check_metadata(&deep)), "fields are nested deeper than 32");
        assert!(check_metadata(&[0xf9, 0, 0]).is_ok(), "an empty list has no type in some files");
    }

    #[test]
    fn the_columns_are_one_tree() {
        check_tree(&[]).unwrap();
        check_tree(&[0]).unwrap();
        check_tree(&[3, 0, 1, 1, 0, 0]).unwrap();
        assert_eq!(words(check_tree(&[2, 0])), "columns: expected 1 more than there are");
        assert_eq!(
            words(check_tree(&[i32::MAX])),
            "columns: expected 2147483647 more than there are"
        );
        assert_eq!(words(check_tree(&[1, 0, 0])), "columns: expected one root, found more");
        assert_eq!(words(check_tree(&[1, -1])), "a column of -1 columns");
        let deep: Vec<_> = std::iter::repeat_n(1, 1000).chain([0]).collect();
        assert_eq!(words(check_tree(&deep)), "columns are nested deeper than 32");
    }
}
