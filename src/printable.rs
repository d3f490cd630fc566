//! What others said, as a terminal may be shown it: names, reasons and messages come over the network.

/// On one line: nothing moves the cursor, begins another line or turns the direction of writing. Each such is a blank.
pub(crate) fn line(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) { c } else { ' ' }).collect()
}

/// The same with its lines.
pub(crate) fn lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' || is_harmless(c) { c } else { ' ' }).collect()
}

/// Neither a control character nor one that turns the direction (Unicode 9, 2.6).
fn is_harmless(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_but_what_is_seen() {
        let said = "a\u{1b}[31m\u{9b}1m\r\n\u{7}b\u{202e}\u{2067}ä\u{7f}";
        assert_eq!(line(said), "a [31m 1m   b  ä ");
        assert_eq!(lines(said), "a [31m 1m \n b  ä ");
    }
}
