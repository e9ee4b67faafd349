//! What bindings and evictions begin with.

use api_meta::Status;
use serde_json::Value;

use crate::{
    handlers::{
        admission, attributes::Attributes, body::read_body, call::Call, decode, meta, options,
        state::State,
    },
    watch_cache::store_status,
};

/// What is posted about a Pod (a binding, an eviction), as admission makes it.
pub(super) async fn posted(
    state: &State,
    call: &Call,
    expected: decode::Expected<'_>,
    attributes: &Attributes<'_>,
) -> Result<Value, Box<Status>> {
    options::check(call, false)?;
    let mut object = decode::decode(call, &read_body(state, call).await?, expected)?;
    meta::check_namespace(&call.resource.definition, &mut object, &call.path.namespace)?;
    // What admission looks at (the Pod's node, its labels) may have been written a moment ago.
    let fresh = state.cache.caught_up().await;
    fresh.map_err(store_status)?;
    admission::admit(state, attributes, &mut object).await?;
    Ok(object)
}
