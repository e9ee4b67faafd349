//! The end of a container's log.

use client::Client;
use maud::{Markup, html};

use crate::{
    api::{self, LOG_LIMIT, LOG_LINES},
    error::PageError,
};

/// Renders a log. `previous` is `true` for the container before its last restart.
pub(crate) async fn content(
    client: &Client,
    namespace: &str,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<Markup, PageError> {
    let text = api::log(client, namespace, pod, container, previous).await?;
    Ok(html! {
        p { "At most " (LOG_LINES) " lines and " (LOG_LIMIT >> 20) " MiB are shown." }
        @if text.is_empty() { p { "The log is empty." } } @else { pre tabindex="0" { (text) } }
    })
}
