//! The plots of the last hour.

use maud::{Markup, html};
use tokio::time::Instant;

use crate::{
    layout::failure,
    measurements::{Measurements, SPAN},
    plot::plot,
};

/// Renders the plots.
pub(crate) fn content(measurements: &Measurements) -> Markup {
    let series = measurements.series(Instant::now());
    let span = SPAN.as_secs_f64();
    let each_second = |value: f64| format!("{value:.1} a second");
    html! {
        @if let Some(error) = measurements.error() { (failure(&error)) }
        (plot("Mean duration of requests", &series.latency, span, |seconds| format!("{:.1} ms", seconds * 1e3)))
        (plot("Requests", &series.requests, span, each_second))
        (plot("Pods bound to nodes", &series.bindings, span, each_second))
        (plot("Memory of the API server", &series.memory, span, |bytes| format!("{:.0} MB", bytes / 1e6)))
        p { "The left edge is an hour ago. Watches are not counted as requests." }
    }
}
