//! How large a fleet may be.

use warmpath::config::Config;

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

/// A list from elsewhere is held to the rules of the one in the file.
#[test]
fn two_workers_of_a_mounted_list_do_not_read_the_events_of_one_engine() {
    let text = "models: [{name: m}]\ndiscovery: {file: {path: w.yaml}}\n";
    let config = Config::parse("a test", text.to_owned()).unwrap();
    let list = std::env::temp_dir().join(format!("warmpath-fleets-{}.yaml", std::process::id()));
    let worker = |id: &str, zmq: &str| format!("- {{id: {id}, url: 'http://{id}:1', model: m, events: zmq, {zmq}}}\n");
    let load = |text: &str| {
        std::fs::write(&list, text).unwrap();
        config.load_workers(&list).map(|workers| workers.len()).map_err(|error| error.to_string())
    };
    let [one, two] = [5557, 5558].map(|port| format!("zmq_endpoint: 'tcp://h:{port}'"));
    assert_eq!(load(&(worker("a", &one) + &worker("b", &two))), Ok(2));
    let shared = load(&(worker("a", &one) + &worker("b", &one))).unwrap_err();
    assert!(shared.contains("tcp://h:5557 is already read for worker `a` at 1:"), "{shared}");
    let nowhere = load(&worker("a", "zmq_endpoint: 'ipc:///x', dp_ranks: 2")).unwrap_err();
    assert!(nowhere.contains("leaves no place for rank 1"), "{nowhere}");
    std::fs::remove_file(&list).unwrap();
}
