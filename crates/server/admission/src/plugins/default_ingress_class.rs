use api_meta::{GroupResource, Tree as _};
use serde_json::Value;

use super::default_storage_class::newest_default;
use crate::request::{AdmissionResult, Plugin, Request};

/// Sets the default class of an Ingress that names none.
pub(crate) struct DefaultIngressClass;

impl Plugin for DefaultIngressClass {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::INGRESSES) && request.creates()
    }

    fn mutate(&self, request: &Request<'_>, ingress: &mut Value) -> AdmissionResult {
        let named = ingress.has("spec.ingressClassName")
            || ingress.annotation("kubernetes.io/ingress.class").is_some();
        if named {
            return Ok(());
        }
        let mark = ["ingressclass.kubernetes.io/is-default-class"];
        if let Some(class) = newest_default(request, &GroupResource::INGRESS_CLASSES, &mark) {
            ingress.put(&["spec", "ingressClassName"], class.name());
        }
        Ok(())
    }
}
