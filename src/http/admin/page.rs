//! The status page: one document over the JSON of `/api/v1/`. It holds no data itself, so it is shown to anybody; what it asks
//! for is guarded as for everybody.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The page. `NONCE` stands where its own style and script are allowed.
const PAGE: &str = include_str!("page.html");

/// What stands for the nonce in it.
const NONCE: &str = "{{nonce}}";

pub(super) async fn show() -> Response {
    // Nobody can guess it, and so add a script to the page.
    let nonce = format!("{:032x}", rand::random::<u128>());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    (headers, PAGE.replace(NONCE, &nonce)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_asks_nobody_else_and_writes_no_markup() {
        assert!(PAGE.len() <= 150 * 1024);
        for foreign in
            ["http://", "https://", "src=\"", "href=\"", "@import", "innerHTML", "style=\"", " onclick=", "eval("]
        {
            let allowed = ["http://www.w3.org/2000/svg"].iter().map(|name| PAGE.matches(name).count()).sum::<usize>();
            let found = PAGE.matches(foreign).count();
            let allowed = if foreign == "http://" { allowed } else { 0 };
            assert_eq!(found, allowed, "{foreign}");
        }
        assert_eq!(PAGE.matches(NONCE).count(), 2);
    }
}
