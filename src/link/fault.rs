//! What breaks an exchange.

use crate::http1::Malformed;

/// Why no more of an answer comes.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The connection ended before the answer did.
    #[error("the connection closed before the end of the answer")]
    Closed,
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// What came is no HTTP/1.
    #[error("the answer is no HTTP: {0}")]
    NoHttp(&'static str),
    /// More came before the body than is read.
    #[error("more than is read")]
    TooLarge,
}

impl From<Malformed> for Fault {
    fn from(Malformed(what): Malformed) -> Self {
        Self::NoHttp(what)
    }
}

impl From<httparse::Error> for Fault {
    fn from(error: httparse::Error) -> Self {
        use httparse::Error;
        match error {
            Error::TooManyHeaders => Self::TooLarge,
            Error::HeaderName => Self::NoHttp("a header's name"),
            Error::HeaderValue => Self::NoHttp("a header's value"),
            Error::NewLine => Self::NoHttp("the end of a line"),
            Error::Status => Self::NoHttp("its status"),
            Error::Version => Self::NoHttp("its version"),
            Error::Token => Self::NoHttp("its first line"),
        }
    }
}
