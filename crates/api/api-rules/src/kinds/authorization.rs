//! Rules of Roles, ClusterRoles and their bindings.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::{Value, json};

use crate::{
    fields::Rule::{Required, Selector},
    meta::NameRule,
    strategy::Strategy,
};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) static ROLE: Strategy = Strategy {
    name: NameRule::PathSegment,
    check: |role, errors| {
        let namespaced = !role.blank("metadata.namespace");
        for (i, rule) in role.items("rules").iter().enumerate() {
            check_rule(rule, namespaced, &Path::new("rules").index(i), errors);
        }
    },
    fields: &[
        (
            "aggregationRule.clusterRoleSelectors",
            Required("at least one clusterRoleSelector required if aggregationRule is non-nil"),
        ),
        ("aggregationRule.clusterRoleSelectors[]", Selector),
    ],
    create_on_update: true,
    ..Strategy::PLAIN
};

pub(crate) static BINDING: Strategy = Strategy {
    name: NameRule::PathSegment,
    own_defaults: |binding| {
        for subject in binding.items_mut("subjects") {
            if subject.blank("apiGroup") && matches!(subject.text("kind"), "User" | "Group") {
                subject.set("apiGroup", GROUP);
            }
        }
    },
    check: check_binding,
    check_update: |new, old, errors| {
        if new.at("roleRef") != old.at("roleRef") {
            // Upstream reports its internal type, whose fields are named differently.
            let role = new.at("roleRef");
            let shown = json!({
                "APIGroup": role.text("apiGroup"), "Kind": role.text("kind"), "Name": role.text("name"),
            });
            let detail = "cannot change roleRef";
            errors.push(FieldError::invalid(&Path::new("roleRef"), shown, detail));
        }
    },
    create_on_update: true,
    ..Strategy::PLAIN
};

fn check_rule(rule: &Value, namespaced: bool, path: &Path, errors: &mut ErrorList) {
    if rule.blank("verbs") {
        let detail = "verbs must contain at least one value";
        errors.push(FieldError::required(&path.child("verbs"), detail));
    }
    if !rule.blank("nonResourceURLs") {
        let path = path.child("nonResourceURLs");
        let list = rule.at("nonResourceURLs").clone();
        if namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.push(FieldError::invalid(&path, list.clone(), detail));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|f| !rule.blank(f)) {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(&path, list, detail));
        }
        return;
    }
    if rule.blank("apiGroups") {
        let detail = "resource rules must supply at least one api group";
        errors.push(FieldError::required(&path.child("apiGroups"), detail));
    }
    if rule.blank("resources") {
        let detail = "resource rules must supply at least one resource";
        errors.push(FieldError::required(&path.child("resources"), detail));
    }
}

fn check_binding(binding: &Value, errors: &mut ErrorList) {
    let (role, path) = (binding.at("roleRef"), Path::new("roleRef"));
    if role.text("apiGroup") != GROUP {
        let path = path.child("apiGroup");
        errors.push(FieldError::not_supported(&path, role.text("apiGroup"), &[GROUP]));
    }
    let kinds: &[&str] = if binding.blank("metadata.namespace") {
        &["ClusterRole"]
    } else {
        &["Role", "ClusterRole"]
    };
    if !kinds.contains(&role.text("kind")) {
        errors.push(FieldError::not_supported(&path.child("kind"), role.text("kind"), kinds));
    }
    if role.blank("name") {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        for message in validation::path_segment_name(role.text("name")) {
            errors.push(FieldError::invalid(&path.child("name"), role.text("name"), message));
        }
    }
    for (i, subject) in binding.items("subjects").iter().enumerate() {
        let namespaced = !binding.blank("metadata.namespace");
        check_subject(subject, namespaced, &Path::new("subjects").index(i), errors);
    }
}

fn check_subject(subject: &Value, namespaced: bool, path: &Path, errors: &mut ErrorList) {
    if subject.blank("name") {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    let group = subject.text("apiGroup");
    let expected = match subject.text("kind") {
        "ServiceAccount" => {
            for message in validation::dns1123_subdomain(subject.text("name")) {
                if !subject.blank("name") {
                    let path = path.child("name");
                    errors.push(FieldError::invalid(&path, subject.text("name"), message));
                }
            }
            if subject.blank("namespace") && !namespaced {
                errors.push(FieldError::required(&path.child("namespace"), ""));
            }
            ""
        }
        "User" | "Group" => GROUP,
        other => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(&path.child("kind"), other, &kinds));
            return;
        }
    };
    if group != expected {
        errors.push(FieldError::not_supported(&path.child("apiGroup"), group, &[expected]));
    }
}
