//! Prints how many addresses each name has: what scripts/deploy/static-names.py builds and runs where nothing else is.
use std::net::ToSocketAddrs;

fn main() {
    for name in std::env::args().skip(1) {
        let found = (name.as_str(), 80).to_socket_addrs().map(|addresses| addresses.count());
        println!("{name} {}", found.unwrap_or(0));
    }
}
