//! The order in which numbered things were last used.

/// No number.
const NONE: u32 = u32::MAX;

/// A doubly linked list through an array: every operation is O(1) and allocates only for a number higher than all before.
#[derive(Debug)]
pub(super) struct Recency {
    links: Vec<Link>,
    newest: u32,
    oldest: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
    listed: bool,
}

const UNLISTED: Link = Link { newer: NONE, older: NONE, listed: false };

impl Default for Recency {
    fn default() -> Self {
        Self { links: Vec::new(), newest: NONE, oldest: NONE }
    }
}

/// `id` as an index.
pub(super) fn place(id: u32) -> usize {
    usize::try_from(id).expect("usize holds a u32 on every supported target")
}

impl Recency {
    /// Makes `id` the newest, whether it was listed or not.
    pub(super) fn touch(&mut self, id: u32) {
        if self.newest == id {
            return;
        }
        self.remove(id);
        if self.links.len() <= place(id) {
            self.links.resize(place(id) + 1, UNLISTED);
        }
        self.links[place(id)] = Link { newer: NONE, older: self.newest, listed: true };
        match self.links.get_mut(place(self.newest)) {
            Some(newest) => newest.newer = id,
            None => self.oldest = id,
        }
        self.newest = id;
    }

    /// Takes `id` out, if it is listed.
    pub(super) fn remove(&mut self, id: u32) {
        let Some(Link { newer, older, listed: true }) = self.links.get(place(id)).copied() else { return };
        match self.links.get_mut(place(newer)) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        match self.links.get_mut(place(older)) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        self.links[place(id)] = UNLISTED;
    }

    /// What was not used for the longest time.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(mut recency: Recency) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(oldest) = recency.oldest() {
            recency.remove(oldest);
            order.push(oldest);
        }
        order
    }

    #[test]
    fn what_is_touched_again_becomes_the_newest() {
        let mut recency = Recency::default();
        for id in [3, 1, 2, 1, 3, 3] {
            recency.touch(id);
        }
        assert_eq!(drained(recency), [2, 1, 3]);
    }

    #[test]
    fn ends_and_middle_can_be_taken_out_and_come_again() {
        for (gone, left) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
            let mut recency = Recency::default();
            (0..3).for_each(|id| recency.touch(id));
            recency.remove(gone);
            recency.remove(gone);
            recency.remove(99);
            assert_eq!(drained(recency), left);
        }
        let mut recency = Recency::default();
        recency.touch(5);
        recency.remove(5);
        assert_eq!(recency.oldest(), None);
        recency.touch(5);
        assert_eq!(drained(recency), [5]);
    }
}
