//! The language and Kubernetes' libraries, by tables of our own and by the published conformance tests where given.

mod conformance;
mod hostile;
mod textproto;
