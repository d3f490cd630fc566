//! A body in one pass: where its values lie, checked as strictly as a parser would.
//!
//! Strings are skipped 64 bytes at a time, the ids of a prompt are read on the way, and the messages of a chat are
//! told apart. Whatever is not plainly valid ends the scan with `None`: serde then reads the body again and says what is
//! wrong, so that there is one judge of what is refused, and its words.

use std::borrow::Cow;

use memchr::memchr;
use simdutf8::basic::from_utf8;

use super::raw::Raw;
use stops::Stops;

mod ids;
mod stops;
mod text;
mod words;

/// Calls `member` with the name of each member of the object that `body` is, and the scanner before its value, which
/// `member` must read. Returns `None` if the body is anything but one valid JSON object that nests at most `levels` deep.
/// O(body).
pub(crate) fn members<'a>(
    body: &'a [u8],
    levels: usize,
    mut member: impl FnMut(&str, &mut Scanner<'a>) -> Option<()>,
) -> Option<()> {
    let mut scanner = Scanner { text: from_utf8(body).ok()?, at: 0, levels, stops: Stops::new() };
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
    let mut scanner = Scanner { text: from_utf8(rest).ok()?, at: 0, levels, stops: Stops::new() };
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

    /// A list of token ids, some at a time.
    pub(super) fn ids(&mut self, mut take: impl FnMut(&[u32])) -> Option<()> {
        self.take(b'[')?;
        loop {
            self.blank();
            // All but the last of most lists, if nothing else.
            self.at += ids::plain(self.rest(), &mut take);
            self.blank();
            take(&[self.id()?]);
            self.blank();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => break,
                _ => return None,
            }
        }
        self.take(b']')
    }

    /// How many ids a list has that is read no further; those may have more than 32 bits.
    pub(super) fn count_ids(&mut self) -> Option<usize> {
        let list = self.rest().strip_prefix(b"[")?;
        let list = &list[..memchr(b']', list)?];
        if let Some(count) = ids::count_plain(list) {
            self.at += list.len() + 2;
            return Some(count);
        }
        let mut count = 0;
        self.ids(|ids| count += ids.len())?;
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

    /// The text of a string in JSON that was scanned before: it is not looked at as strictly again.
    pub(crate) fn known_text(&mut self) -> Option<Cow<'a, str>> {
        let (text, len) = text::text(self.text.get(self.at..)?)?;
        self.at += len;
        Some(text)
    }

    /// A string; whether it has escapes.
    fn string(&mut self) -> Option<bool> {
        self.take(b'"')?;
        let (end, escaped) = self.stops.end(self.text.as_bytes(), self.at)?;
        self.at = end + 1;
        Some(escaped)
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
        let (value, count) = ids::number(rest)?;
        if count > 1 && rest[0] == b'0' {
            return None;
        }
        self.at += count;
        Some(value)
    }
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
            scanner.ids(|ids| read.extend_from_slice(ids))?;
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
        // Of every length, and begun at every place of a block.
        for len in 1..=10 {
            for before in 0..70 {
                let numbers = vec!["1234567890"[..len].to_owned(); 300];
                let list =
                    format!("[{}{}]", "1,".repeat(before), numbers.join(if before % 2 == 0 { "," } else { ", " }));
                assert_eq!(ids(&list), serde_json::from_str(&list).ok(), "{list}");
            }
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
            "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,123456789012345,4]",
            "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,123456789012345,4]",
            "[1",
        ] {
            assert_eq!(ids(list), None, "{list}");
        }
    }

    fn counted(list: &str) -> Option<usize> {
        let mut found = None;
        members(format!("{{\"prompt\":{list}}}").as_bytes(), 4, |_, scanner| {
            found = Some(scanner.count_ids()?);
            Some(())
        })?;
        found
    }

    #[test]
    fn ids_are_counted_as_they_are_read() {
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
        /// However the numbers are written and parted, and wherever a block ends among them.
        #[test]
        fn lists_are_read_and_counted_as_serde_reads_them(
            written in proptest::collection::vec(("[0-9]{1,6}|0|[1-9][0-9]{6,9}", 0_usize..40), 1..120),
            begin in 0_usize..4,
        ) {
            const PARTS: [&str; 8] = [", ", ",  ", " ,", ",\n", ",,", "", ",x", ".5,"];
            // Most lists are right, so that they are read to their ends.
            let part = |choice: usize| PARTS.get(choice.wrapping_sub(30)).copied().unwrap_or(if begin % 2 == 0 { "," } else { ", " });
            let fits = |number: &str| begin > 1 && number.len() > 1 && number.starts_with('0');
            let numbers = written.iter().map(|(number, choice)| {
                let number = if fits(number) { "7" } else { number };
                [number, part(if begin > 1 { 0 } else { *choice })].concat()
            });
            let text: String = numbers.collect();
            let list = format!("[{}]", text.trim_end_matches([',', ' ']));
            let expected: Option<Vec<u32>> = serde_json::from_str(&list).ok();
            prop_assert_eq!(ids(&list), expected.clone(), "{}", list);
            if let Some(expected) = expected {
                prop_assert_eq!(counted(&list), Some(expected.len()), "{}", list);
            }
        }

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
