//! `/openapi/v3` and `/openapi/v2`: documents made from the schema table when they are first asked for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use serve::Body;
use sha2::{Digest, Sha256};

use crate::{
    answer,
    definition::{Kinds, api_version},
};

/// Finished documents, by path; forgotten when custom kinds change.
#[derive(Default)]
pub(crate) struct Documents {
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// Which kinds the documents were made from.
    kinds: u64,
    documents: HashMap<String, (Bytes, Arc<str>)>,
}

impl Documents {
    /// Answers an OpenAPI path; `None` if it is none.
    pub(crate) fn answer(
        &self,
        kinds: &Arc<Kinds>,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        let rest = path.strip_prefix("/openapi/")?;
        let (bytes, etag) = match rest.trim_end_matches('/') {
            "v3" => self.document(kinds, "v3", || Some(self.index(kinds))),
            rest => {
                let group_version = rest.strip_prefix("v3/")?;
                self.document(kinds, rest, || crate::custom::openapi(kinds, group_version))
            }
        }?;
        let unchanged =
            headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
        let code = if unchanged { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let mut response =
            answer::bytes(code, "application/json", if unchanged { Bytes::new() } else { bytes });
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            response.headers_mut().insert(header::ETAG, etag);
        }
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        Some(response)
    }

    fn document(
        &self,
        kinds: &Arc<Kinds>,
        name: &str,
        make: impl FnOnce() -> Option<Value>,
    ) -> Option<(Bytes, Arc<str>)> {
        let identity = kinds.generation;
        {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            if made.kinds != identity {
                *made = Made { kinds: identity, documents: HashMap::new() };
            }
            if let Some(found) = made.documents.get(name) {
                return Some(found.clone());
            }
        }
        let bytes = Bytes::from(make()?.to_string());
        let hash: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02X}")).collect();
        let found = (bytes, Arc::from(format!("\"{hash}\"")));
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.kinds == identity {
            made.documents.insert(name.to_owned(), found.clone());
        }
        Some(found)
    }

    fn index(&self, kinds: &Arc<Kinds>) -> Value {
        let mut paths = serde_json::Map::new();
        for resource in kinds.all.values() {
            for served in &resource.definition.served {
                let group_version = api_version(&served.group, &served.version);
                let path = if served.group.is_empty() {
                    format!("api/{group_version}")
                } else {
                    format!("apis/{group_version}")
                };
                if paths.contains_key(&path) {
                    continue;
                }
                let name = format!("v3/{path}");
                let made = self.document(kinds, &name, || crate::custom::openapi(kinds, &path));
                let hash =
                    made.map(|(_, etag)| etag.trim_matches('"').to_owned()).unwrap_or_default();
                paths.insert(
                    path.clone(),
                    json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}),
                );
            }
        }
        json!({"paths": paths})
    }
}
