//! The streams of an exec or attach, and the WebSocket protocols that carry them.

use crate::query::Query;

/// The WebSocket protocols of exec and attach in the order of preference. kubectl asks for the first one.
pub(crate) const CHANNELS: &[(&str, Dialect)] = &[
    ("v5.channel.k8s.io", Dialect { status: true, base64: false, can_close: true }),
    ("v4.channel.k8s.io", Dialect { status: true, base64: false, can_close: false }),
    ("v4.base64.channel.k8s.io", Dialect { status: true, base64: true, can_close: false }),
    ("channel.k8s.io", Dialect { status: false, base64: false, can_close: false }),
    ("base64.channel.k8s.io", Dialect { status: false, base64: true, can_close: false }),
    // A client without a protocol header uses the oldest protocol.
    ("", Dialect { status: false, base64: false, can_close: false }),
];

/// The streams of an exec or attach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

impl Options {
    /// Reads the kubelet's parameter names and those of the Pod's subresources, because a server may pass these on.
    pub(crate) fn of(query: &Query) -> Self {
        let either = |one: &str, other: &str| query.is(one) || query.is(other);
        let tty = query.is("tty");
        Self {
            stdin: either("input", "stdin"),
            stdout: either("output", "stdout"),
            // A terminal merges both outputs.
            stderr: either("error", "stderr") && !tty,
            tty,
        }
    }
}

/// The features of a WebSocket protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    /// `true` if the error channel ends with a Status in JSON, also on success. Else it only has the text of a failure.
    pub(crate) status: bool,
    /// `true` if messages are text: the channel's digit and the content in base64.
    pub(crate) base64: bool,
    /// `true` if a client may close one channel and leave the others open.
    pub(crate) can_close: bool,
}
