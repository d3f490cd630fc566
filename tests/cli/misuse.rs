//! Exit code 2 is kept: wrong use, or a file that cannot be read, of every command that takes either.

use std::process::{Command, Stdio};

use super::{Configuration, GOOD, stderr, stdout, warmpath};

/// A trace that is there, for what is wrong beside it.
const TRACE: &str = "generate:few-shot?tasks=2&requests=2";

/// A command's words, with capitals in place of what is long, and what it says of them.
const CALLS: &[(&str, &str)] = &[
    ("replay --trace no/file", "warmpath: no/file: cannot be read: No such file"),
    ("replay --trace generate:foo", "warmpath: --trace generate: no workload is called `foo`"),
    ("replay --trace TRACE --block-size 32", "says itself that its blocks have 16 tokens"),
    ("replay --trace TRACE --format mooncake", "--format is for what is read, and this is generated"),
    ("trace stat --trace - --trace-seed 3", "warmpath: --trace-seed is for what is generated, and - is read"),
    ("replay --trace TRACE --ca no/file", "warmpath: --ca, --cert and --key are for --live"),
    ("replay --trace TRACE --prefetch wait_complete", "--host-blocks <BLOCKS>"),
    ("replay --trace TRACE --host-blocks 5 --storage-ranks 2", "--storage-blocks <BLOCKS>"),
    ("replay --trace TRACE --speed 0", "'--speed <FACTOR>': must be a number above 0"),
    ("replay --trace TRACE --misread 3", "'--misread <SHARE>': must be from 0 to 1"),
    ("replay --trace TRACE --warm-up 1", "'--warm-up <SHARE>': must be at least 0 and below 1"),
    ("replay --trace TRACE --slow 0", "'--slow <FACTOR>': must be a number above 0"),
    ("replay --trace TRACE --jitter nan", "'--jitter <DEVIATION>': must be from 0 to 2"),
    ("replay --trace TRACE --restart=-1", "'--restart <SECONDS>': must be a number, 0 or more"),
    ("replay --trace TRACE --restart -1", "'--restart <SECONDS>': must be a number, 0 or more"),
    ("replay --trace TRACE --speed -0.5", "'--speed <FACTOR>': must be a number above 0"),
    ("replay --trace TRACE --vocabulary -1 --live URL", "'--vocabulary <N>': -1 is not in 2.."),
    ("replay --trace TRACE --skip -1", "'--skip <N>': invalid digit found in string"),
    ("replay --trace -1", "warmpath: -1: cannot be read: No such file"),
    ("replay -1 --trace TRACE", "unexpected argument '-1' found"),
    ("trace stat --trace TRACE --block-size -1", "'--block-size <TOKENS>': -1 is not in 1..=65536"),
    ("replay --trace TRACE --gpu-memory-utilization 2", "'--gpu-memory-utilization <SHARE>': must be from 0 to 1"),
    ("replay --trace TRACE --gpu-memory-utilization 0.9 --timing polynomial", "needs a model that it knows"),
    ("replay --trace TRACE --config no/file.yaml", "no/file.yaml: cannot be read: No such file"),
    ("replay --trace TRACE --csv no/folder/x", "warmpath: cannot write no/folder/x: No such file"),
    ("replay --trace TRACE --html no/folder/x", "warmpath: cannot write no/folder/x: No such file"),
    ("replay --trace TRACE --live foo", "warmpath: --live: expected a URL such as http://127.0.0.1:8000"),
    ("replay --trace TRACE --event-delay 1e300", "'--event-delay <MS>': must be at most 1000000000"),
    ("replay --trace TRACE --kv-transfer 1e300", "'--kv-transfer <US>': must be at most 1000000000"),
    ("replay --trace TRACE --kv-transfer 1e9", "'--kv-transfer <US>': must be at most 1000000"),
    ("replay --trace TRACE --restart 1e300", "'--restart <SECONDS>': must be at most 1000000"),
    ("replay --trace TRACE --slow 1e4", "'--slow <FACTOR>': must be from 0.001 to 1000"),
    ("replay --trace TRACE --speed 1e-300", "'--speed <FACTOR>': must be from 0.000001 to 1000000000"),
    ("replay --trace TRACE --scrape-interval 0.5", "'--scrape-interval <MS>': must be 0, or at least 1"),
    ("replay --trace TRACE --timing linear:1e300,0", "does not give two times in milliseconds, from 0 to 1000000"),
    ("replay --trace TRACE --timing roofline:8b-h100,mfu=1e-300", "mfu and mbu from 0.000001 to 1000000"),
    ("replay --trace TRACE --profile nano --host-blocks 5", "the profile `nano` has no tiers below its cache"),
    ("replay --trace TRACE --skip 5000", "--skip and --requests leave none of its "),
    ("replay --trace TRACE --requests 0", "--skip and --requests leave none of its "),
    ("replay --trace TRACE --live http://h:1 --policy kv", "'--live <URL>' cannot be used with"),
    ("replay --trace TRACE --live http://h:1 --check", "'--live <URL>' cannot be used with"),
    ("replay --trace TRACE --live http://h:1 --cache-blocks 5", "'--live <URL>' cannot be used with"),
    ("replay --trace TRACE --timeout 5", "--live <URL>"),
    ("mock-engine --profile nano --host-blocks 5", "the profile `nano` has no tiers below its cache"),
    ("optimize --trace TRACE --ttl-seconds 1e300", "'--ttl-seconds <S>': must be at most 1000000000"),
    ("optimize --trace TRACE --workers 0", "'--workers <N>': must be from 1 to 1024"),
    ("optimize --trace TRACE --capacity-blocks x", "a capacity is a number of blocks or `inf`, got `x`"),
    ("optimize --trace TRACE --ttl-seconds=-1", "'--ttl-seconds <S>': must be a number, 0 or more"),
    ("optimize --trace TRACE --ttl-seconds -1", "'--ttl-seconds <S>': must be a number, 0 or more"),
    ("optimize --trace no/file", "warmpath: no/file: cannot be read: No such file"),
    ("optimize --trace TRACE --csv no/folder/x", "warmpath: cannot write no/folder/x: No such file"),
    ("optimize --trace TRACE --html no/folder/x", "warmpath: cannot write no/folder/x: No such file"),
    ("tune --trace TRACE --policy round_robin", "the policy `round_robin` has no weights to tune"),
    ("tune --trace TRACE --hold-back 1", "'--hold-back <SHARE>': must be above 0 and below 1"),
    ("tune --trace TRACE --ttft-limit 0", "'--ttft-limit <MS>': must be a number above 0"),
    ("tune --trace TRACE --out no/folder/x", "warmpath: cannot write no/folder/x: No such file"),
    ("tune --trace TRACE --html no/folder/x", "warmpath: cannot write no/folder/x: No such file"),
    ("calibrate", "<--prefill <TOKENS:MS>|--url <URL>>"),
    ("calibrate --prefill 1:1 --decode 1x1:1 --ca no/file", "warmpath: --ca, --cert and --key are for --url"),
    ("calibrate --url foo", "warmpath: --url: expected a URL such as http://127.0.0.1:8000, got `foo`"),
    ("calibrate --url http://127.0.0.1:9 --preset foo", "'foo' for '--preset <PRESET>'"),
    ("calibrate --url http://127.0.0.1:9 --overhead=-1", "'--overhead <MS>': must be a number, 0 or more"),
    ("bridge BRIDGE --engine foo --nats NATS", "warmpath: --engine: expected a URL such as http://10.0.0.1:8000"),
    ("bridge BRIDGE --engine URL --nats foo", "warmpath: --nats: expected a URL such as nats://127.0.0.1:4222"),
    ("bridge BRIDGE --engine URL --nats NATS --zmq foo", "'foo' for '--zmq <ENDPOINT>'"),
    ("bridge BRIDGE --engine URL --nats NATS --worker=", "'--worker <ID>'"),
    (
        "bridge BRIDGE --engine URL --nats NATS --prefix a.*",
        "'a.*' for '--prefix <PREFIX>': a subject prefix is letters",
    ),
    ("bridge BRIDGE --engine URL --nats NATS --nats-user u", "--nats-user without --nats-password-file"),
    (
        "bridge BRIDGE --engine URL --nats NATS --nats-user u --nats-password-file no/file",
        "warmpath: cannot read no/file: No such file",
    ),
    ("bridge BRIDGE --engine URL --nats NATS --metric-names no/file", "warmpath: --metric-names no/file: No such file"),
    ("demo --bus foo", "warmpath: --bus: expected a URL such as nats://127.0.0.1:4222"),
    ("mock-engine --bus http://h:1", "warmpath: --bus: expected a URL such as nats://127.0.0.1:4222"),
    ("demo --requests 0", "'--requests <N>': 0 is not in 1.."),
    ("demo --workers -1", "'--workers <WORKERS>': -1 is not in 1..=64"),
    ("demo --speed 0", "'--speed <SPEED>': must be a number above 0"),
    ("plan GOOD GOOD --trace no/file", "warmpath: no/file: cannot be read: No such file"),
    ("plan GOOD GOOD --trace TRACE --workers 0", "'--workers <N>': 0 is not in 1..=1024"),
    ("plan GOOD GOOD --trace TRACE --speed 0", "'--speed <FACTOR>': must be a number above 0"),
    ("plan GOOD GOOD --requests 3", "--trace <FILE>"),
    ("plan no/file.yaml GOOD", "no/file.yaml: cannot be read: No such file"),
    ("trace stat --trace no/file", "warmpath: no/file: cannot be read: No such file"),
    ("trace convert --trace no/file", "warmpath: no/file: cannot be read: No such file"),
    ("mock-engine --tokenizer no/file", "warmpath: cannot read no/file: No such file"),
    ("mock-engine --prefix=", "'--prefix <PREFIX>'"),
    ("mock-engine --prefix a.", "'a.' for '--prefix <PREFIX>': a subject prefix is letters, digits, `_`, `-` and dots"),
    ("mock-engine --speedup 0", "'--speedup <SPEEDUP>': must be a number above 0"),
    ("mock-engine --zmq-replay tcp://127.0.0.1:0", "warmpath: --zmq-replay needs --zmq or --zmq-connect"),
    ("top --ca no/file", "warmpath: cannot read `no/file`: No such file"),
    ("explain --request 1 --ca no/file", "warmpath: cannot read `no/file`: No such file"),
    ("explain --body no/file", "warmpath: no/file: cannot be read: No such file"),
    ("explain --request 1 --config no/file.yaml", "no/file.yaml: cannot be read: No such file"),
    ("serve --config no/file.yaml", "no/file.yaml: cannot be read: No such file"),
    ("check no/file.yaml", "no/file.yaml: cannot be read: No such file"),
    ("config show no/file.yaml", "no/file.yaml: cannot be read: No such file"),
    ("doctor --config no/file.yaml", "no/file.yaml: cannot be read: No such file"),
];

/// As with `2>&1 | head -0`.
#[test]
fn who_does_not_hear_why_still_gets_the_code() {
    for args in [&["check", "no/file.yaml"][..], &["replay", "--trace", "no/file"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
        let mut child = command.args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(2), "{args:?}");
    }
}

/// What a bridge needs besides; what a call says itself is left to it.
const BRIDGE: [[&str; 2]; 3] = [["--worker", "w"], ["--model", "m"], ["--zmq", "tcp://127.0.0.1:1"]];

#[test]
fn wrong_use_and_unreadable_files_exit_with_2_and_say_why_once() {
    let good = Configuration::new("misuse", GOOD);
    for (words, expected) in CALLS {
        let args: Vec<&str> = words
            .split(' ')
            .flat_map(|word| match word {
                "TRACE" => vec![TRACE],
                "GOOD" => vec![good.path()],
                "URL" => vec!["http://127.0.0.1:9"],
                "NATS" => vec!["nats://127.0.0.1:9"],
                "BRIDGE" => BRIDGE.into_iter().filter(|[option, _]| !words.contains(option)).flatten().collect(),
                word => vec![word],
            })
            .collect();
        let output = warmpath(&args);
        let said = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{words}: {said}");
        assert!(said.contains(expected), "{words}: {said}");
        assert!(said.matches("os error").count() <= 1, "{words}: {said}");
    }
}

#[test]
fn why_a_file_cannot_be_read_is_said_by_every_command_in_the_same_words() {
    let folder = std::env::temp_dir();
    let folder = folder.to_str().unwrap();
    let good = Configuration::new("why", GOOD);
    let expected = format!("{folder}: cannot be read: Is a directory (os error 21)\n");
    for args in [
        &["check", folder][..],
        &["serve", "--config", folder],
        &["plan", good.path(), folder],
        &["doctor", "--config", folder],
        &["explain", "--request", "1", "--config", folder],
        &["replay", "--trace", TRACE, "--config", folder],
        &["config", "show", folder],
    ] {
        let output = warmpath(args);
        assert_eq!((output.status.code(), stderr(&output)), (Some(2), expected.as_str()), "{args:?}");
    }
}

#[test]
fn a_certificate_that_is_not_there_is_said_once() {
    let ports = "data: '127.0.0.1:0', admin: '127.0.0.1:0'";
    let text = format!("{GOOD}listen: {{{ports}, data_tls: {{certificate: /no/c, key: /no/k}}}}\n");
    let config = Configuration::new("certificate", &text);
    let output = warmpath(&["serve", "--config", config.path()]);
    let expected = "warmpath: the router could not start: listen.data_tls: cannot read `/no/c`: No such file or directory \
                    (os error 2)\n";
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), expected));
}
