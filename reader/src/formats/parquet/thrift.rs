//! Metadata and page headers, walked before the Parquet crate reads them.
//!
//! The crate believes what they say: it reads a known field whatever its type, passes over as many
//! truth values as a list claims (they take no bytes), and takes memory for as many children as a
//! column claims. What passes here is read in time and memory that are proportional to its bytes.

use std::result::Result;

const MOST_DEPTH: usize = 32;

const BYTE: u8 = 3;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

#[derive(Debug)]
pub(super) enum Fault {
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

enum Shape {
    /// It passes over the field, by the type that the field says.
    Any,
    Bool,
    Plain(u8),
    List(&'static Shape),
    Struct(&'static Fields),
}

/// The fields that the crate knows of a structure, and those whose numbers are noted.
struct Fields(&'static [(i16, Shape)], &'static [i16]);

/// Declares structures: the number and the shape of each field that is known, then the numbers of
/// those that are noted. In a shape, `[…]` is a list, and a name that of another structure.
macro_rules! structures {
    ($($name:ident { $($id:literal: $shape:tt),* } $(notes $($noted:literal),+)?;)+) => {
        $(static $name: Fields = Fields(&[$(($id, structures!(@ $shape))),*], &[$($($noted),+)?]);)+
    };
    (@ bool) => { Shape::Bool };
    (@ i8) => { Shape::Plain(BYTE) };
    (@ i16) => { Shape::Plain(4) };
    (@ i32) => { Shape::Plain(5) };
    (@ i64) => { Shape::Plain(6) };
    (@ double) => { Shape::Plain(7) };
    (@ bytes) => { Shape::Plain(8) };
    (@ [$shape:tt]) => { Shape::List(&structures!(@ $shape)) };
    (@ $name:ident) => { Shape::Struct(&$name) };
}

structures! {
    EMPTY {};
    FILE {
        1: i32, 2: [SCHEMA_ELEMENT], 3: i64, 4: [ROW_GROUP], 5: [KEY_VALUE], 6: bytes,
        7: [COLUMN_ORDER]
    };
    // Its number of children is noted.
    SCHEMA_ELEMENT {
        1: i32, 2: i32, 3: i32, 4: bytes, 5: i32, 6: i32, 7: i32, 8: i32, 9: i32, 10: LOGICAL_TYPE
    } notes 5;
    LOGICAL_TYPE {
        1: EMPTY, 2: EMPTY, 3: EMPTY, 4: EMPTY, 5: DECIMAL, 6: EMPTY, 7: TIME, 8: TIME,
        10: INTEGER, 11: EMPTY, 12: EMPTY, 13: EMPTY, 14: EMPTY, 15: EMPTY, 16: VARIANT,
        17: GEOMETRY, 18: GEOGRAPHY, 19: EMPTY
    };
    DECIMAL { 1: i32, 2: i32 };
    INTEGER { 1: i8, 2: bool };
    VARIANT { 1: i8 };
    GEOMETRY { 1: bytes };
    GEOGRAPHY { 1: bytes, 2: i32 };
    TIME { 1: bool, 2: TIME_UNIT };
    TIME_UNIT { 1: EMPTY, 2: EMPTY, 3: EMPTY };
    KEY_VALUE { 1: bytes, 2: bytes };
    COLUMN_ORDER { 1: EMPTY, 2: EMPTY, 3: EMPTY };
    ROW_GROUP { 1: [COLUMN_CHUNK], 2: i64, 3: i64, 4: [SORTING_COLUMN], 5: i64, 7: i16 };
    SORTING_COLUMN { 1: i32, 2: bool, 3: bool };
    COLUMN_CHUNK { 1: bytes, 2: i64, 3: COLUMN, 4: i64, 5: i32, 6: i64, 7: i32 };
    COLUMN {
        1: i32, 2: [i32], 4: i32, 5: i64, 6: i64, 7: i64, 9: i64, 10: i64, 11: i64,
        12: STATISTICS, 13: [ENCODING_STATISTICS], 14: i64, 15: i32, 16: SIZE_STATISTICS,
        17: PLACES
    };
    STATISTICS {
        1: bytes, 2: bytes, 3: i64, 4: i64, 5: bytes, 6: bytes, 7: bool, 8: bool, 9: i64
    };
    ENCODING_STATISTICS { 1: i32, 2: i32, 3: i32 };
    SIZE_STATISTICS { 1: i64, 2: [i64], 3: [i64] };
    PLACES { 1: BOX, 2: [i32] };
    BOX {
        1: double, 2: double, 3: double, 4: double, 5: double, 6: double, 7: double, 8: double
    };
    // Its bytes once it is decompressed are noted.
    PAGE {
        1: i32, 2: i32, 3: i32, 4: i32, 5: DATA_PAGE, 6: EMPTY, 7: DICTIONARY_PAGE, 8: DATA_PAGE_V2
    } notes 2;
    DATA_PAGE { 1: i32, 2: i32, 3: i32, 4: i32, 5: STATISTICS };
    DICTIONARY_PAGE { 1: i32, 2: i32, 3: bool };
    // The bytes of its levels are noted.
    DATA_PAGE_V2 {
        1: i32, 2: i32, 3: i32, 4: i32, 5: i32, 6: i32, 7: bool, 8: STATISTICS
    } notes 5, 6;
}

pub(super) fn check_metadata(bytes: &[u8]) -> Result<(), Fault> {
    let mut walk = Walk { rest: bytes, noted: Vec::new() };
    walk.fields(&FILE, MOST_DEPTH)?;
    check_tree(&walk.noted)
}

/// What a page's header says, and the bytes that it takes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub length: usize,
    pub size: u64,
    /// The bytes of it that are not compressed: levels, which come first in a page of the second
    /// version.
    pub levels: usize,
}

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
