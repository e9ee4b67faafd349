use api_meta::{GroupResource, Status};
use serde_json::Value;

use super::default_storage_class::newest_default;
use crate::{
    Outcome, Plugin, Request,
    tree::{annotation, at, is_set, text},
};

/// Gives an Ingress that names no class the default one.
pub(crate) struct DefaultIngressClass;

impl Plugin for DefaultIngressClass {
    fn mutate(
        &self,
        request: &Request<'_>,
        ingress: &mut Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        let named = is_set(ingress, "/spec/ingressClassName")
            || annotation(ingress, "kubernetes.io/ingress.class").is_some();
        if !request.is(&GroupResource::INGRESSES) || !request.creates() || named {
            return Ok(());
        }
        let mark = ["ingressclass.kubernetes.io/is-default-class"];
        if let Some(class) = newest_default(request, &GroupResource::INGRESS_CLASSES, &mark) {
            *at(ingress, &["spec", "ingressClassName"]) = text(&class, "/metadata/name").into();
        }
        Ok(())
    }
}
