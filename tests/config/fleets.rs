//! How large a fleet may be.

use super::faults;

#[test]
fn a_fleet_has_no_more_ranks_than_there_are_slots() {
    let fleet = |last: u32| {
        let worker = |at: u32| {
            let ranks = if at == 64 { last } else { 1024 };
            format!("- {{id: w{at}, url: 'http://w{at}', model: m, events: none, dp_ranks: {ranks}}}\n")
        };
        format!("models: [{{name: m}}]\nworkers:\n{}", (1..=64).map(worker).collect::<String>())
    };
    assert_eq!(faults(&fleet(1023), &[]), Vec::<String>::new());
    let said = "66:66: workers and their ranks up to here are 65536; at most 65535 are served";
    assert_eq!(faults(&fleet(1024), &[]), [said]);
}
