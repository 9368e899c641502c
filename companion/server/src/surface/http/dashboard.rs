//! The dashboard: its page, and the files that the page asks for by relative addresses.
//!
//! The policy of the page forbids a request to anything but its own origin, and any script but these files. So a name that
//! a client chose can't become a script, even if the page had a defect.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The files below `dashboard/`: name, type and content.
const FILES: [(&str, &str, &str); 9] = [
    ("style.css", CSS, include_str!("../dashboard/style.css")),
    ("actions.js", JAVASCRIPT, include_str!("../dashboard/actions.js")),
    ("chart.js", JAVASCRIPT, include_str!("../dashboard/chart.js")),
    ("charts.js", JAVASCRIPT, include_str!("../dashboard/charts.js")),
    ("details.js", JAVASCRIPT, include_str!("../dashboard/details.js")),
    ("dom.js", JAVASCRIPT, include_str!("../dashboard/dom.js")),
    ("main.js", JAVASCRIPT, include_str!("../dashboard/main.js")),
    ("series.js", JAVASCRIPT, include_str!("../dashboard/series.js")),
    ("source.js", JAVASCRIPT, include_str!("../dashboard/source.js")),
];

/// The routes of the page and its files.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let page = get(|| async { content(HTML, include_str!("../dashboard/index.html")) });
    Router::new()
        .route("/", page)
        .route("/dashboard/{file}", get(file))
        // A browser asks for it by itself; the page has an icon in its text.
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
}

async fn file(Path(name): Path<String>) -> Response {
    match FILES.into_iter().find(|(known, _, _)| *known == name) {
        Some((_, kind, text)) => content(kind, text),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn content(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // A new version of the companion has new files under the same names.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}
