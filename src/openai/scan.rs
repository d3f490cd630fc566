//! A body in one pass: where its values lie, checked as strictly as a parser would.
//!
//! Strings are skipped at the speed of `memchr`, the ids of a prompt are read on the way, and the messages of a chat are
//! told apart. Whatever is not plainly valid ends the scan with `None`: serde then reads the body again and says what is
//! wrong, so that there is one judge of what is refused, and its words.

use std::borrow::Cow;

use memchr::memchr2;

use super::raw::Raw;

/// Calls `member` with the name of each member of the object that `body` is, and the scanner before its value, which
/// `member` must read. Returns `None` if the body is anything but one valid JSON object that nests at most `levels` deep.
/// O(body).
pub(crate) fn members<'a>(
    body: &'a [u8],
    levels: usize,
    mut member: impl FnMut(&str, &mut Scanner<'a>) -> Option<()>,
) -> Option<()> {
    let mut scanner = Scanner { text: std::str::from_utf8(body).ok()?, at: 0, levels };
    scanner.blank();
    scanner.object(|scanner, name| member(&name, scanner))?;
    scanner.blank();
    (scanner.at == body.len()).then_some(())
}

/// A place in a text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// How many more arrays and objects may open.
    levels: usize,
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
        self.list(b'{', b'}', |scanner| {
            let name = scanner.name()?;
            scanner.blank();
            scanner.take(b':')?;
            scanner.blank();
            member(scanner, name)
        })
    }

    fn array(&mut self, element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.list(b'[', b']', element)
    }

    fn list(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(open)?;
        self.levels = self.levels.checked_sub(1)?;
        self.blank();
        if self.take(close).is_none() {
            loop {
                item(self)?;
                self.blank();
                if self.take(b',').is_none() {
                    break;
                }
                self.blank();
            }
            self.take(close)?;
        }
        self.levels += 1;
        Some(())
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
        let mut escaped = false;
        loop {
            let rest = self.rest();
            let end = memchr2(b'"', b'\\', rest)?;
            let (plain, end_byte) = (&rest[..end], rest[end]);
            // A minimum, not a search: the compiler makes vector instructions of it.
            if plain.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < 0x20 {
                return None;
            }
            self.at += end + 1;
            if end_byte == b'"' {
                return Some(escaped);
            }
            escaped = true;
            self.escape()?;
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
        for list in ["[0,1, 4294967295 ,10]", "[ 7 ]", "[12345,\n6]", "[1234567,12345678,99999,151643]", "[4]"] {
            assert_eq!(ids(list), serde_json::from_str(list).ok(), "{list}");
        }
        for list in ["[01]", "[1.0]", "[1e3]", "[4294967296]", "[-1]", "[1,]", "[]", "[1 2]", "[99999999999]", "[1"] {
            assert_eq!(ids(list), None, "{list}");
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
