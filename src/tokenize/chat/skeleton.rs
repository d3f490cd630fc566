//! What a template puts round the texts of messages, learned once for conversations of one form.
//!
//! Templates print most texts as they are. So conversations whose messages have the same roles, in the same order and
//! under the same variables, differ in these texts alone, and what stands between them can be kept: a conversation that
//! goes on has a form that others had before it. To fill it costs a copy of the texts, a thirtieth of what the template
//! takes. Which texts are printed as they are is found out beforehand ([`Habits`](super::habits::Habits)).

use std::ops::Range;
use std::sync::Arc;

use crate::tokenize::byte_cache::Weigh;

/// What was rendered for conversations of one form.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tokenize) enum Skeleton {
    /// One conversation. Most forms that came once do not come again, so nothing was learned.
    Met,
    /// Its texts stand as they are between these pieces.
    Known(Arc<Pieces>),
    /// They do not.
    Unfit,
}

/// Pieces of text, one more than there are places between them.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tokenize) struct Pieces {
    all: Box<str>,
    /// Where the pieces end, the last one but for `all`.
    ends: Box<[usize]>,
}

impl Weigh for Skeleton {
    fn bytes(&self) -> usize {
        let more = match self {
            Self::Known(pieces) => size_of::<Pieces>() + pieces.all.len() + size_of_val(&*pieces.ends),
            Self::Met | Self::Unfit => 0,
        };
        size_of::<Self>() + more
    }
}

/// The text that stands for the one at `place` while pieces are learned: nothing that a template knows, and nothing that it
/// would trim.
pub(super) fn mark(place: usize) -> String {
    format!("qZ7wTkX4{place:08}vJ2sRb")
}

impl Pieces {
    /// What is round the marks of the first `places` places in `rendered`; `None` unless each is there once, in order.
    pub(super) fn around_marks(rendered: &str, places: usize) -> Option<Self> {
        let mut all = String::with_capacity(rendered.len());
        let mut ends = Vec::with_capacity(places);
        let mut rest = rendered;
        for place in 0..places {
            let (before, behind) = rest.split_once(&mark(place))?;
            all.push_str(before);
            ends.push(all.len());
            rest = behind;
        }
        all.push_str(rest);
        let whole = (0..places).all(|place| !all.contains(&mark(place)));
        whole.then(|| Self { all: all.into(), ends: ends.into() })
    }

    /// The pieces behind the first `places` places, with `texts` between them, one for each place that is left.
    pub(super) fn filled_behind<'a>(&self, places: usize, texts: impl Iterator<Item = &'a str> + Clone) -> String {
        let begin = places.checked_sub(1).map_or(0, |last| self.ends[last]);
        let mut text = String::with_capacity(self.all.len() - begin + texts.clone().map(str::len).sum::<usize>());
        let last = self.ends.last().copied().unwrap_or_default();
        for (piece, filling) in self.before_places().skip(places).zip(texts) {
            text.push_str(piece);
            text.push_str(filling);
        }
        text.push_str(self.piece(last..self.all.len()));
        text
    }

    /// The pieces before the places.
    pub(super) fn before_places(&self) -> impl Iterator<Item = &str> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(from, end)| self.piece(from..*end))
    }

    fn piece(&self, range: Range<usize>) -> &str {
        &self.all[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(rendered: &str, places: usize) -> Option<Pieces> {
        let marked =
            (0..places).fold(rendered.to_owned(), |text, place| text.replace(&format!("<{place}>"), &mark(place)));
        Pieces::around_marks(&marked, places)
    }

    #[test]
    fn texts_take_the_places_of_marks() {
        let filled = |rendered: &str, texts: &[&str]| {
            pieces(rendered, texts.len()).unwrap().filled_behind(0, texts.iter().copied())
        };
        assert_eq!(filled("a<0>b<1>", &["x", "é"]), "axbé");
        assert_eq!(filled("<0><1>c", &["", "y"]), "yc");
        assert_eq!(filled("alone", &[]), "alone");
        let behind =
            |places: usize| pieces("a<0>b<1>c", 2).unwrap().filled_behind(places, ["x", "y"].into_iter().skip(places));
        assert_eq!([0, 1, 2].map(behind), ["axbyc", "byc", "c"]);
    }

    #[test]
    fn a_mark_that_is_missing_doubled_or_out_of_order_leaves_nothing_to_fill() {
        for rendered in ["a<0>b", "a<1>b<0>", "<0><1><0>", "<0><1><1>"] {
            assert_eq!(pieces(rendered, 2), None, "{rendered}");
        }
    }
}
