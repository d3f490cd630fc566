//! A body in one pass: where its values lie, checked as strictly as a parser would.
//!
//! Strings are skipped 64 bytes at a time, the ids of a prompt are read on the way, and the messages of a chat are
//! told apart. Whatever is not plainly valid ends the scan with `None`: serde then reads the body again and says what is
//! wrong, so that there is one judge of what is refused, and its words.

use std::borrow::Cow;

use memchr::memchr;

use super::raw::Raw;
use stops::Stops;

mod stops;

/// Calls `member` with the name of each member of the object that `body` is, and the scanner before its value, which
/// `member` must read. Returns `None` if the body is anything but one valid JSON object that nests at most `levels` deep.
/// O(body).
pub(crate) fn members<'a>(
    body: &'a [u8],
    levels: usize,
    mut member: impl FnMut(&str, &mut Scanner<'a>) -> Option<()>,
) -> Option<()> {
    let mut scanner = Scanner { text: std::str::from_utf8(body).ok()?, at: 0, levels, stops: Stops::new() };
    scanner.blank();
    scanner.object(|scanner, name| member(&name, scanner))?;
    scanner.blank();
    (scanner.at == body.len()).then_some(())
}

/// The same of the last members, where `rest` is what is left of the object's text from the name of one of them on. O(rest).
pub(crate) fn last_members<'a>(
    rest: &'a [u8],
    levels: usize,
    mut member: impl FnMut(&str, &mut Scanner<'a>) -> Option<()>,
) -> Option<()> {
    let mut scanner = Scanner { text: std::str::from_utf8(rest).ok()?, at: 0, levels, stops: Stops::new() };
    scanner.items(b'}', |scanner| scanner.member(&mut |scanner, name| member(&name, scanner)))?;
    scanner.blank();
    (scanner.at == rest.len()).then_some(())
}

/// A place in a text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// How many more arrays and objects may open.
    levels: usize,
    stops: Stops,
}

impl<'a> Scanner<'a> {
    /// Any value.
    pub(crate) fn value(&mut self) -> Option<Raw<'a>> {
        let start = self.at;
        match self.peek()? {
            b'"' => self.string().map(drop)?,
            b'{' => self.object(|scanner, _| scanner.value().map(drop))?,
            b'[' => self.array(|scanner| scanner.value().map(drop))?,
            b't' => self.word("true")?,
            b'f' => self.word("false")?,
            b'n' => self.word("null")?,
            _ => self.number()?,
        }
        self.since(start)
    }

    /// An array of at most `most` elements, element by element.
    pub(super) fn elements(&mut self, most: usize) -> Option<Vec<Raw<'a>>> {
        let mut elements = Vec::new();
        self.array(|scanner| {
            elements.push(scanner.value()?);
            (elements.len() <= most).then_some(())
        })?;
        Some(elements)
    }

    /// A list of token ids; whether `id` takes each of them.
    pub(super) fn ids(&mut self, mut id: impl FnMut(u32)) -> Option<()> {
        self.take(b'[')?;
        loop {
            self.blank();
            self.plain_ids(&mut id);
            self.blank();
            id(self.id()?);
            self.blank();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => break,
                _ => return None,
            }
        }
        self.take(b']')
    }

    /// Ids as most writers write them, up to one that is not followed by a comma, or a comma and a space: the last, if nothing
    /// else. A step for each, with nothing but the number to find out.
    fn plain_ids(&mut self, id: &mut impl FnMut(u32)) {
        let mut rest = self.rest();
        while let Some((value, count)) = short_number(rest) {
            let zero_in_front = count > 1 && rest[0] == b'0';
            let [b',', behind @ ..] = &rest[count..] else { break };
            if zero_in_front {
                break;
            }
            id(value);
            rest = behind.strip_prefix(b" ").unwrap_or(behind);
        }
        self.at = self.text.len() - rest.len();
    }

    /// How many ids a list has that is read no further; those may have more than 32 bits.
    pub(super) fn count_ids(&mut self) -> Option<usize> {
        let list = self.rest().strip_prefix(b"[")?;
        let list = &list[..memchr(b']', list)?];
        if let Some(count) = plain_numbers(list) {
            self.at += list.len() + 2;
            return Some(count);
        }
        let mut count = 0;
        self.ids(|_| count += 1)?;
        Some(count)
    }

    /// Where it is.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    /// Bytes that are not read yet.
    pub(super) fn left(&self) -> usize {
        self.rest().len()
    }

    /// What was read since it was at `start`.
    pub(super) fn since(&self, start: usize) -> Option<Raw<'a>> {
        self.text.get(start..self.at).map(Raw)
    }

    /// Whether an array begins here.
    pub(super) fn at_array(&self) -> bool {
        self.peek() == Some(b'[')
    }

    /// Whether a list of token ids may begin here.
    pub(super) fn at_ids(&self) -> bool {
        let rest = self.rest().strip_prefix(b"[").unwrap_or_default();
        rest.iter().find(|byte| !is_blank(**byte)).is_some_and(u8::is_ascii_digit)
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.rest().starts_with(word.as_bytes()).then(|| self.at += word.len())
    }

    fn object(&mut self, mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Option<()>) -> Option<()> {
        self.list(b'{', b'}', |scanner| scanner.member(&mut member))
    }

    fn member(&mut self, member: &mut impl FnMut(&mut Self, Cow<'a, str>) -> Option<()>) -> Option<()> {
        let name = self.name()?;
        self.blank();
        self.take(b':')?;
        self.blank();
        member(self, name)
    }

    fn array(&mut self, element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.list(b'[', b']', element)
    }

    fn list(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(open)?;
        self.levels = self.levels.checked_sub(1)?;
        self.blank();
        if self.take(close).is_none() {
            self.items(close, &mut item)?;
        }
        self.levels += 1;
        Some(())
    }

    /// At least one item, up to the end of the list.
    fn items(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        loop {
            item(self)?;
            self.blank();
            if self.take(b',').is_none() {
                return self.take(close);
            }
            self.blank();
        }
    }

    /// A member's name; copied where it has escapes.
    fn name(&mut self) -> Option<Cow<'a, str>> {
        let start = self.at;
        let escaped = self.string()?;
        if escaped {
            return serde_json::from_str(self.text.get(start..self.at)?).ok().map(Cow::Owned);
        }
        self.text.get(start + 1..self.at - 1).map(Cow::Borrowed)
    }

    /// A string; whether it has escapes.
    fn string(&mut self) -> Option<bool> {
        self.take(b'"')?;
        let (bytes, mut escaped) = (self.text.as_bytes(), false);
        loop {
            let stop = self.stops.next(bytes, self.at)?;
            self.at = stop + 1;
            match bytes[stop] {
                b'"' => return Some(escaped),
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let kind = self.peek()?;
        self.at += 1;
        match kind {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' if self.rest().get(..4)?.iter().all(u8::is_ascii_hexdigit) => {
                self.at += 4;
                Some(())
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        }
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Option<()> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        (count > 0).then_some(())
    }

    /// A token id: digits without a leading zero, in 32 bits.
    fn id(&mut self) -> Option<u32> {
        let rest = self.rest();
        let (value, count) = short_number(rest).or_else(|| long_number(rest))?;
        if count > 1 && rest[0] == b'0' {
            return None;
        }
        self.at += count;
        Some(value)
    }
}

/// How many numbers a list has that are written as most writers do: one comma between two of them, or a comma and a space, and
/// no zero in front. `None` for any other list, valid or not. Each byte is looked at beside the one before it, without a branch,
/// so the compiler makes vector instructions of it.
fn plain_numbers(list: &[u8]) -> Option<usize> {
    // So many that a byte counts the commas.
    const STRETCH: usize = 128;
    let ([b'1'..=b'9', rest @ ..], Some(b'0'..=b'9')) = (list, list.last()) else { return None };
    let mut commas = 0;
    for (before, bytes) in list.chunks(STRETCH).zip(rest.chunks(STRETCH)) {
        let (mut fits, mut count) = (true, 0_u8);
        for (&before, &byte) in before.iter().zip(bytes) {
            let goes_on = before.is_ascii_digit();
            fits &= (byte.is_ascii_digit() & (goes_on | (byte != b'0')))
                | ((byte == b',') & goes_on)
                | ((byte == b' ') & (before == b','));
            count += u8::from(byte == b',');
        }
        if !fits {
            return None;
        }
        commas += usize::from(count);
    }
    Some(commas + 1)
}

/// A number of one to seven digits, and how many they are, without a branch for each; `None` if there are more or fewer, or
/// if the text ends soon. Eight digits by three multiplications: Lemire, "Quickly parsing eight digits".
fn short_number(text: &[u8]) -> Option<(u32, usize)> {
    const ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);
    let word = u64::from_le_bytes(*text.first_chunk()?) ^ ZEROS;
    // The high bit of every byte above 9; what an odd byte carries over reaches only bytes behind it.
    let others = (word.wrapping_add(u64::from_le_bytes([0x76; 8])) | word) & u64::from_le_bytes([0x80; 8]);
    let bits = others.trailing_zeros() & !7;
    if bits == 0 || bits == 64 {
        return None;
    }
    let digits = word << (64 - bits);
    let pairs = (digits.wrapping_mul(2561) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(6_553_601) >> 16) & 0x0000_ffff_0000_ffff;
    let value = fours.wrapping_mul(42_949_672_960_001) >> 32;
    Some((u32::try_from(value).ok()?, usize::try_from(bits / 8).ok()?))
}

/// A number of any length that fits, and how many digits it has.
fn long_number(text: &[u8]) -> Option<(u32, usize)> {
    let digits = text.iter().take(11).take_while(|byte| byte.is_ascii_digit());
    let (value, count) =
        digits.fold((0_u64, 0), |(value, count), digit| (value * 10 + u64::from(digit - b'0'), count + 1));
    (count > 0).then_some(())?;
    Some((u32::try_from(value).ok()?, count))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The members' names and texts.
    fn read(body: &str) -> Option<Vec<(String, String)>> {
        let mut found = Vec::new();
        members(body.as_bytes(), 4, |name, scanner| {
            found.push((name.to_owned(), scanner.value()?.get().to_owned()));
            Some(())
        })?;
        Some(found)
    }

    #[test]
    fn members_are_found_where_they_lie() {
        let body = " { \"a\" : [1, {\"b\":\"]\\\"\"}] ,\"mod\\u0065l\":-1.5e+3,\"\":null } ";
        let expected = [("a", "[1, {\"b\":\"]\\\"\"}]"), ("model", "-1.5e+3"), ("", "null")];
        assert_eq!(read(body).unwrap(), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert_eq!(read("{}"), Some(Vec::new()));
    }

    #[test]
    fn what_nests_too_deep_is_left_to_others() {
        assert!(read(r#"{"a":[[[1]]]}"#).is_some());
        assert_eq!(read(r#"{"a":[[[[1]]]]}"#), None);
        assert!(read(r#"{"a":[[[]],[[]]],"b":[[[]]]}"#).is_some());
    }

    fn ids(list: &str) -> Option<Vec<u32>> {
        let mut found = None;
        let body = format!("{{\"prompt\":{list}}}");
        members(body.as_bytes(), 4, |_, scanner| {
            if !scanner.at_ids() {
                return None;
            }
            let mut read = Vec::new();
            scanner.ids(|id| read.push(id))?;
            found = Some(read);
            Some(())
        })?;
        found
    }

    #[test]
    fn ids_are_read_as_serde_reads_them() {
        for list in [
            "[0,1, 4294967295 ,10]",
            "[ 7 ]",
            "[12345,\n6]",
            "[1234567,12345678,99999,151643]",
            "[4]",
            "[1,  2]",
            "[1, 2,3,\t4]",
        ] {
            assert_eq!(ids(list), serde_json::from_str(list).ok(), "{list}");
        }
        for list in [
            "[01]",
            "[1,02,3]",
            "[00,1]",
            "[1.0]",
            "[1e3]",
            "[4294967296]",
            "[-1]",
            "[1,]",
            "[]",
            "[1 2]",
            "[99999999999]",
            "[1",
        ] {
            assert_eq!(ids(list), None, "{list}");
        }
    }

    #[test]
    fn ids_are_counted_as_they_are_read() {
        let counted = |list: &str| {
            let mut found = None;
            members(format!("{{\"prompt\":{list}}}").as_bytes(), 4, |_, scanner| {
                found = Some(scanner.count_ids()?);
                Some(())
            })?;
            found
        };
        let long = format!("[{}]", vec!["151643"; 1_000].join(","));
        assert_eq!(counted(&long), Some(1_000));
        for list in ["[7]", "[0]", "[1,2]", "[1, 20, 300]", "[ 1 ,\n2]", "[10,0,1]", "[1,2 ]"] {
            assert_eq!(counted(list), ids(list).map(|ids| ids.len()), "{list}");
        }
        assert_eq!(counted("[4294967296,1]"), Some(2), "they are not judged");
        let spoilt = |at: usize, with: &str| format!("{}{with}{}", &long[..at], &long[at..]);
        for list in [
            "[]",
            "[1,,2]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1,  2",
            "[01]",
            "[1,02]",
            "[1.5]",
            "[-1]",
            "[1,[2]]",
            "[1,\"2\"]",
        ] {
            assert_eq!(counted(list), None, "{list}");
        }
        for at in 1..long.len() - 1 {
            assert_eq!(counted(&spoilt(at, "x")), None, "{at}");
        }
    }

    proptest! {
        /// Broken in one place, a body is taken only if serde takes it, and its members are then the same.
        #[test]
        fn nothing_is_taken_that_serde_refuses(at in 0_usize..160, byte in any::<u8>(), cut in any::<bool>()) {
            let whole = br#"{"model":"m\n\u00e9","messages":[{"role":"user","content":"h\"i {["}],"n":1,"t":-0.5e2,"x":[true,false,null,{"y":[]}],"s":"caf\u00c3"}"#;
            let mut body = whole.to_vec();
            let at = at % body.len();
            if cut { body.truncate(at) } else { body[at] = byte }
            let mut found = Vec::new();
            let scanned = members(&body, 64, |name, scanner| {
                found.push((name.to_owned(), scanner.value()?.get().to_owned()));
                Some(())
            });
            let parsed: Result<std::collections::HashMap<String, Box<serde_json::value::RawValue>>, _> =
                serde_json::from_slice(&body);
            match (scanned, parsed) {
                (Some(()), Ok(parsed)) => {
                    for (name, text) in &found {
                        if found.iter().filter(|(other, _)| other == name).count() == 1 {
                            prop_assert_eq!(parsed[name].get(), text);
                        }
                    }
                }
                (Some(()), Err(error)) => prop_assert!(false, "serde says {error}"),
                // A lone surrogate passes in values that serde only skips; names and the rest must agree.
                (None, Ok(_)) => prop_assert!(false, "the scan gave up on a valid body"),
                (None, Err(_)) => {}
            }
        }
    }
}
