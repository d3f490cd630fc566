//! Reading MessagePack values one after the other, without recursion and without memory of its own.

use rmp::Marker;

use super::{DecodeError, MAX_TEXT_BYTES};

/// A place in a message.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    message: &'a [u8],
    at: usize,
}

/// One value; of an array or a map only its length, the elements follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(u32),
    Map(u32),
    Extension,
}

impl Value<'_> {
    /// The type's name, for error messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool => "a boolean",
            Self::Unsigned(_) => "an integer",
            Self::Negative(_) => "a negative integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Extension => "an extension",
        }
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { message, at: 0 }
    }

    /// The byte that is read next.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left: an upper bound of the number of values that can follow.
    pub(super) fn left(&self) -> usize {
        self.message.len().saturating_sub(self.at)
    }

    fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.message.len());
        let end = end.ok_or(DecodeError::Truncated { at: self.message.len(), field })?;
        let bytes = &self.message[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let bytes = self.take(N, field)?;
        Ok(bytes.try_into().expect("`take` gives as many bytes as asked for"))
    }

    fn payload(&mut self, len: u32, field: &'static str) -> Result<&'a [u8], DecodeError> {
        // A length that does not fit `usize` does not fit the message either: `take` refuses it.
        self.take(usize::try_from(len).unwrap_or(usize::MAX), field)
    }

    /// Reads one value; `field` names it in errors.
    pub(super) fn value(&mut self, field: &'static str) -> Result<Value<'a>, DecodeError> {
        let at = self.at;
        let [byte] = self.number(field)?;
        Ok(match Marker::from_u8(byte) {
            Marker::Null => Value::Nil,
            Marker::False | Marker::True => Value::Bool,
            Marker::FixPos(n) => Value::Unsigned(u64::from(n)),
            Marker::FixNeg(n) => Value::Negative(i64::from(n)),
            Marker::U8 => Value::Unsigned(u64::from(u8::from_be_bytes(self.number(field)?))),
            Marker::U16 => Value::Unsigned(u64::from(u16::from_be_bytes(self.number(field)?))),
            Marker::U32 => Value::Unsigned(u64::from(u32::from_be_bytes(self.number(field)?))),
            Marker::U64 => Value::Unsigned(u64::from_be_bytes(self.number(field)?)),
            Marker::I8 => signed(i64::from(i8::from_be_bytes(self.number(field)?))),
            Marker::I16 => signed(i64::from(i16::from_be_bytes(self.number(field)?))),
            Marker::I32 => signed(i64::from(i32::from_be_bytes(self.number(field)?))),
            Marker::I64 => signed(i64::from_be_bytes(self.number(field)?)),
            Marker::F32 => Value::Float(f64::from(f32::from_be_bytes(self.number(field)?))),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.number(field)?)),
            Marker::Reserved => return Err(DecodeError::WrongType { at, field, found: "a reserved byte" }),
            marker => self.sized(marker, field)?,
        })
    }

    /// Reads what follows a marker of a value that has a length.
    fn sized(&mut self, marker: Marker, field: &'static str) -> Result<Value<'a>, DecodeError> {
        let len = match marker {
            Marker::FixStr(len) | Marker::FixArray(len) | Marker::FixMap(len) => u32::from(len),
            Marker::Str8 | Marker::Bin8 | Marker::Ext8 => u32::from(u8::from_be_bytes(self.number(field)?)),
            Marker::Str16 | Marker::Bin16 | Marker::Ext16 | Marker::Array16 | Marker::Map16 => {
                u32::from(u16::from_be_bytes(self.number(field)?))
            }
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            _ => u32::from_be_bytes(self.number(field)?),
        };
        Ok(match marker {
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Value::Array(len),
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => Value::Map(len),
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Value::Text(self.payload(len, field)?),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Value::Bytes(self.payload(len, field)?),
            _ => {
                // An extension: its type, then its bytes.
                self.take(1, field)?;
                self.payload(len, field)?;
                Value::Extension
            }
        })
    }

    /// Reads at most `count` numbers below 2³² to the end of `into`, as far as they come in forms of one, two or four bytes;
    /// stops before the first value that does not, which [`value`](Self::value) can read. Most of what engines send are
    /// token ids: the widths of their forms change too often to be guessed, so none is branched on.
    pub(super) fn numbers(&mut self, count: usize, into: &mut Vec<u32>) {
        const U8: u8 = 0xcc;
        const U32: u8 = 0xce;
        for _ in 0..count {
            let Some(next) = self.message.get(self.at..).and_then(<[u8]>::first_chunk::<8>) else { return };
            let (value, len) = match next[0] {
                small @ 0..=0x7f => (u64::from(small), 1),
                form @ U8..=U32 => {
                    let width = 1_usize << (form - U8);
                    ((u64::from_be_bytes(*next) << 8) >> (64 - 8 * width), 1 + width)
                }
                _ => return,
            };
            let Ok(value) = u32::try_from(value) else { return };
            into.push(value);
            self.at += len;
        }
    }

    /// Passes over one value with all that is in it, however deep: a counter of values to come takes the place of
    /// recursion.
    pub(super) fn skip(&mut self, field: &'static str) -> Result<(), DecodeError> {
        let mut to_come: u64 = 1;
        while to_come > 0 {
            to_come -= 1;
            to_come = to_come.saturating_add(match self.value(field)? {
                Value::Array(len) => u64::from(len),
                Value::Map(len) => 2 * u64::from(len),
                _ => 0,
            });
        }
        Ok(())
    }

    /// Passes over one value and returns its bytes.
    pub(super) fn skipped(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let from = self.at;
        self.skip(field)?;
        Ok(&self.message[from..self.at])
    }

    /// Reads the next value as the length of an array of at most `limit`.
    pub(super) fn array(&mut self, field: &'static str, limit: usize) -> Result<usize, DecodeError> {
        let at = self.at;
        match self.value(field)? {
            Value::Array(len) => within(len, limit, field, at),
            other => Err(DecodeError::WrongType { at, field, found: other.name() }),
        }
    }

    /// Reads text of at most [`MAX_TEXT_BYTES`]; `None` for nil.
    pub(super) fn text(&mut self, field: &'static str) -> Result<Option<&'a str>, DecodeError> {
        let at = self.at;
        match self.value(field)? {
            Value::Nil => Ok(None),
            Value::Text(bytes) => text(bytes, field, at).map(Some),
            other => Err(DecodeError::WrongType { at, field, found: other.name() }),
        }
    }

    /// Reads a count that fits `u32`; `None` for nil.
    pub(super) fn count(&mut self, field: &'static str) -> Result<Option<u32>, DecodeError> {
        let at = self.at;
        match self.value(field)? {
            Value::Nil => Ok(None),
            Value::Unsigned(n) => u32::try_from(n).map(Some).map_err(|_| DecodeError::OutOfRange { at, field }),
            Value::Negative(_) => Err(DecodeError::OutOfRange { at, field }),
            other => Err(DecodeError::WrongType { at, field, found: other.name() }),
        }
    }
}

fn signed(n: i64) -> Value<'static> {
    u64::try_from(n).map_or(Value::Negative(n), Value::Unsigned)
}

/// A length off the wire, if the limit allows it.
fn within(len: u32, limit: usize, field: &'static str, at: usize) -> Result<usize, DecodeError> {
    usize::try_from(len).ok().filter(|&len| len <= limit).ok_or(DecodeError::TooMany {
        at,
        field,
        count: u64::from(len),
        limit,
    })
}

/// Bytes as text of at most [`MAX_TEXT_BYTES`].
pub(super) fn text<'a>(bytes: &'a [u8], field: &'static str, at: usize) -> Result<&'a str, DecodeError> {
    if bytes.len() > MAX_TEXT_BYTES {
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        return Err(DecodeError::TooMany { at, field, count, limit: MAX_TEXT_BYTES });
    }
    std::str::from_utf8(bytes).map_err(|_| DecodeError::NotText { at, field })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(message: &[u8]) -> Result<Value<'_>, DecodeError> {
        Cursor::new(message).value("x")
    }

    #[test]
    fn integers_of_every_width_are_one_number() {
        for message in [&[5][..], &[0xcc, 5], &[0xcd, 0, 5], &[0xce, 0, 0, 0, 5], &[0xd0, 5], &[0xd2, 0, 0, 0, 5]] {
            assert_eq!(value(message), Ok(Value::Unsigned(5)), "{message:x?}");
        }
        assert_eq!(value(&[0xfb]), Ok(Value::Negative(-5)));
        assert_eq!(value(&[0xd1, 0xff, 0xfb]), Ok(Value::Negative(-5)));
        assert_eq!(value(&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]), Ok(Value::Unsigned(u64::MAX)));
    }

    #[test]
    fn numbers_in_a_row_are_those_that_come_one_by_one() {
        let forms: [&[u8]; 7] =
            [&[5], &[0x7f], &[0xcc, 200], &[0xcd, 1, 2], &[0xce, 0, 1, 2, 3], &[0xce, 255, 255, 255, 255], &[0]];
        let message = [forms.concat(), vec![0xcf, 0, 0, 0, 0, 0, 0, 0, 9, 0xc0, 1, 1, 1, 1, 1, 1, 1]].concat();
        let (mut many, mut single, mut numbers) = (Cursor::new(&message), Cursor::new(&message), Vec::new());
        many.numbers(100, &mut numbers);
        for number in &numbers {
            assert_eq!(single.value("x"), Ok(Value::Unsigned(u64::from(*number))));
        }
        assert_eq!((numbers.len(), many.at(), many.value("x")), (7, single.at(), Ok(Value::Unsigned(9))));
        let mut few = Cursor::new(&message);
        few.numbers(2, &mut numbers);
        assert_eq!((few.at(), numbers.len()), (2, 9));
        let mut end = Cursor::new(&message[..6]);
        end.numbers(4, &mut numbers);
        assert_eq!((end.at(), numbers.len()), (0, 9), "near the end they are read one by one");
    }

    #[test]
    fn a_message_that_ends_inside_a_value_says_where_and_in_what() {
        assert_eq!(value(&[]), Err(DecodeError::Truncated { at: 0, field: "x" }));
        assert_eq!(value(&[0xcf, 1, 2]), Err(DecodeError::Truncated { at: 3, field: "x" }));
        assert_eq!(value(&[0xdb, 0xff, 0xff, 0xff, 0xff, 1]), Err(DecodeError::Truncated { at: 6, field: "x" }));
    }

    #[test]
    fn skipping_is_not_recursive() {
        let mut message = vec![0x91; 200_000];
        message.push(0xc0);
        let mut cursor = Cursor::new(&message);
        assert_eq!(cursor.skip("x"), Ok(()));
        assert_eq!(cursor.at(), 200_001);
        let mut cursor = Cursor::new(&message[..200_000]);
        assert_eq!(cursor.skip("x"), Err(DecodeError::Truncated { at: 200_000, field: "x" }));
    }

    #[test]
    fn a_skipped_map_takes_keys_and_values_along() {
        let message = [0x82, 0xa1, b'a', 0x92, 1, 2, 0xa1, b'b', 0xc7, 1, 9, 9, 0x2a];
        let mut cursor = Cursor::new(&message);
        assert_eq!(cursor.skipped("x"), Ok(&message[..12]));
        assert_eq!(cursor.value("x"), Ok(Value::Unsigned(42)));
    }

    #[test]
    fn every_kind_of_value_is_passed_over_whole() {
        let mut kinds: Vec<Vec<u8>> =
            vec![vec![0xc0], vec![0xc3], vec![0xe0], vec![0xca, 0, 0, 0, 0], vec![0x90], vec![0x80]];
        for (marker, len) in [(0xd4, 1), (0xd5, 2), (0xd6, 4), (0xd7, 8), (0xd8, 16)] {
            kinds.push([vec![marker], vec![0; len + 1]].concat());
        }
        for (marker, payload) in [(0xd9, 0), (0xc4, 0), (0xc7, 1)] {
            for (wider, zeros) in [(0, 0), (1, 1), (2, 3)] {
                kinds.push([vec![marker + wider], vec![0; zeros], vec![2], vec![0; 2 + payload]].concat());
            }
        }
        for (marker, elements) in [(0xdc, 2), (0xde, 4)] {
            kinds.push([vec![marker, 0, 2], vec![0xc0; elements]].concat());
            kinds.push([vec![marker + 1, 0, 0, 0, 2], vec![0xc0; elements]].concat());
        }
        for message in kinds {
            let mut cursor = Cursor::new(&message);
            assert_eq!((cursor.skip("x"), cursor.left()), (Ok(()), 0), "{message:x?}");
            let short = &message[..message.len() - 1];
            assert_eq!(Cursor::new(short).skip("x"), Err(DecodeError::Truncated { at: short.len(), field: "x" }));
        }
    }

    #[test]
    fn a_long_text_is_refused() {
        let mut message = vec![0xda, 0x10, 0x01];
        message.resize(3 + 4097, b'a');
        let refused = DecodeError::TooMany { at: 0, field: "x", count: 4097, limit: 4096 };
        assert_eq!(Cursor::new(&message).text("x"), Err(refused));
    }
}
