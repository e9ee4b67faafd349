//! The response for a request that no authorizer allowed.

use api_meta::{Attributes, GroupResource, Status};

/// Builds the 403 for a request that no authorizer allowed.
pub fn forbidden(request: &Attributes<'_>, reason: &str) -> Status {
    let cause =
        if reason.is_empty() { request.to_string() } else { format!("{request}: {reason}") };
    let resource = GroupResource::new(request.group.to_owned(), request.resource.to_owned());
    Status::forbidden(&resource, request.name, cause)
}

#[cfg(test)]
mod tests {
    use api_meta::UserInfo;

    use super::*;

    #[test]
    fn message_equals_upstreams() {
        let user = UserInfo::new("u", &[]);
        let list = Attributes::resource(&user, "list", "", "pods").in_namespace("default");
        assert_eq!(
            forbidden(&list, "").message,
            "pods is forbidden: User \"u\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
        );
        let log = Attributes::resource(&user, "get", "apps", "x").with_subresource("y").named("n");
        assert_eq!(
            forbidden(&log, "no").message,
            "x.apps \"n\" is forbidden: User \"u\" cannot get resource \"x/y\" in API group \"apps\" at the cluster scope: no"
        );
        let path = Attributes::path(&user, "get", "/metrics");
        assert_eq!(
            forbidden(&path, "").message,
            "forbidden: User \"u\" cannot get path \"/metrics\""
        );
    }
}
