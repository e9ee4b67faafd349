//! Decodes and admits bindings and evictions.

use api_meta::Status;
use serde_json::Value;

use crate::{
    handlers::{
        admission, attributes::Attributes, body::read_body, call::Call, decode, meta, options,
        state::State,
    },
    watch_cache::store_status,
};

/// Decodes the posted object and runs mutating admission.
pub(super) async fn decode_and_admit(
    state: &State,
    call: &Call,
    expected: decode::ExpectedType<'_>,
    attributes: &Attributes<'_>,
) -> Result<Value, Box<Status>> {
    options::check(call, false)?;
    let mut object = decode::decode(call, &read_body(state, call).await?, expected)?;
    meta::check_namespace(&call.resource.definition, &mut object, &call.path.namespace)?;
    // Objects that admission reads (the Pod's node, its labels) may have been written just before.
    let fresh = state.cache.wait_for_own_writes().await;
    fresh.map_err(store_status)?;
    admission::admit(state, attributes, &mut object).await?;
    Ok(object)
}
