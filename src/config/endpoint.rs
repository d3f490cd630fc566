//! Where a ZeroMQ socket is.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A ZeroMQ endpoint: `tcp://HOST:PORT` or `ipc://PATH`, where `HOST` may be `*` to listen on every interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ZmqEndpoint {
    /// Over TCP.
    Tcp {
        /// A name, an address (IPv6 without brackets), or `*`.
        host: String,
        /// Its port; 0, where something listens, is any.
        port: u16,
    },
    /// A socket in the file system.
    Ipc(PathBuf),
}

impl ZmqEndpoint {
    /// Where rank `rank` of the same engine is: vLLM adds the rank to the port. None where it has no such place: a socket
    /// in the file system has no ranks, and ports end.
    pub fn for_rank(&self, rank: u32) -> Option<Self> {
        match self {
            Self::Ipc(_) => (rank == 0).then(|| self.clone()),
            Self::Tcp { host, port } => {
                let port = port.checked_add(u16::try_from(rank).ok()?)?;
                Some(Self::Tcp { host: host.clone(), port })
            }
        }
    }
}

impl std::str::FromStr for ZmqEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected an endpoint such as tcp://10.0.0.1:5557 or ipc:///run/kv.sock, got `{text}`");
        if let Some(path) = text.strip_prefix("ipc://") {
            let named = !path.is_empty() && path != "*" && !path.starts_with('@') && path.len() <= 100;
            return if named { Ok(Self::Ipc(path.into())) } else { Err(wrong()) };
        }
        let (host, port) = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |host: &str| {
            host == "*" || (!host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)))
        };
        let host = match bare {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => address,
            None if is_name(host) && host.len() <= 253 => host,
            _ => return Err(wrong()),
        };
        Ok(Self::Tcp { host: host.to_owned(), port: port.parse().map_err(|_| wrong())? })
    }
}

impl TryFrom<String> for ZmqEndpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ZmqEndpoint> for String {
    fn from(endpoint: ZmqEndpoint) -> String {
        endpoint.to_string()
    }
}

impl fmt::Display for ZmqEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_written_as_it_is_read() {
        for text in ["tcp://127.0.0.1:5557", "tcp://*:5557", "tcp://[::1]:1", "tcp://gpu-1.pods:65535", "ipc:///a/b"] {
            assert_eq!(text.parse::<ZmqEndpoint>().map(String::from), Ok(text.to_owned()));
        }
        for text in [
            "",
            "tcp://",
            "tcp://a",
            "tcp://a:b",
            "tcp://:1",
            "tcp://a b:1",
            "tcp://::1:1",
            "ipc://",
            "ipc://@a",
            "inproc://a",
            "tcp://a:65536",
            "http://a:1",
        ] {
            let expected =
                format!("expected an endpoint such as tcp://10.0.0.1:5557 or ipc:///run/kv.sock, got `{text}`");
            assert_eq!(text.parse::<ZmqEndpoint>(), Err(expected));
        }
    }

    #[test]
    fn a_rank_is_added_to_the_port() {
        let at = |text: &str, rank| text.parse::<ZmqEndpoint>().unwrap().for_rank(rank).map(String::from);
        assert_eq!(at("tcp://a:5557", 3), Some("tcp://a:5560".to_owned()));
        assert_eq!((at("tcp://a:65535", 1), at("ipc:///a", 1)), (None, None));
        assert_eq!(at("ipc:///a", 0), Some("ipc:///a".to_owned()));
    }
}
