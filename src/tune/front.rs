//! Which of many results nothing beats in everything.

/// The places of the results that no other is at least as good as in every figure and better than in one; of equal results
/// the first. Lower is better. O(results²).
pub fn front<const N: usize>(results: &[[f64; N]]) -> Vec<usize> {
    let is_beaten = |place: usize| {
        let mine = &results[place];
        results.iter().enumerate().any(|(other, theirs)| {
            let no_worse = theirs.iter().zip(mine).all(|(theirs, mine)| theirs <= mine);
            no_worse && (theirs != mine || other < place)
        })
    };
    (0..results.len()).filter(|place| !is_beaten(*place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beaten_in_everything_is_left_out() {
        let results = [[1.0, 5.0], [2.0, 2.0], [3.0, 3.0], [5.0, 1.0], [2.0, 6.0]];
        assert_eq!(front(&results), [0, 1, 3]);
    }

    #[test]
    fn of_equal_results_one_is_left_and_a_tie_in_one_figure_is_beaten_by_the_other() {
        assert_eq!(front(&[[1.0, 2.0], [1.0, 2.0], [1.0, 1.0]]), [2]);
        assert_eq!(front(&[[1.0, 1.0], [1.0, 1.0]]), [0]);
        assert_eq!(front::<2>(&[]), [0; 0]);
    }

    #[test]
    fn figures_of_which_each_is_the_best_once_are_all_kept() {
        assert_eq!(front(&[[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), [0, 1, 2]);
    }
}
