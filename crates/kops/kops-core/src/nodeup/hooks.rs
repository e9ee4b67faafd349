//! Units that the spec adds to machines.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use serde_json::Value;

use super::{
    context::Context,
    task::{Service, Task, Tasks},
    unit::{Unit, command_line, unit_name},
};
use crate::error::Error;

const FIELD: &str = "hooks";

/// Adds the hooks of the instance group, then those of the cluster. The first of a name wins.
pub(super) fn build(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    for (list, suffix) in context.config.items("Hooks").iter().zip(["-ig", ""]) {
        for (index, hook) in list.as_array().into_iter().flatten().enumerate() {
            let name = match hook.text("name") {
                "" => format!("kops-hook-{index}{suffix}"),
                name => name.to_owned(),
            };
            if names.insert(name.clone()) {
                tasks.add(Task::Service(service(&name, hook)?))?;
            }
        }
    }
    Ok(())
}

fn service(name: &str, hook: &Value) -> Result<Service, Error> {
    let file = unit_name(FIELD, name)?;
    if hook.opt_flag("enabled") == Some(false) {
        return Ok(Service {
            enabled: false,
            running: false,
            smart_restart: false,
            ..Service::running(&file, None)
        });
    }
    let manifest = hook.text("manifest");
    let image = hook.text("execContainer.image").trim();
    if manifest.is_empty() && image.is_empty() {
        return Err(Error::value(
            FIELD,
            name,
            "has neither a manifest nor the image of a container",
        ));
    }
    if hook.flag("useRawManifest") {
        return Ok(Service::running(&file, Some(manifest.to_owned())));
    }
    let mut unit = Unit::new("Unit", &[("Description", &format!("Kops Hook {name}"))]);
    for (field, key) in [("requires", "Requires"), ("before", "Before")] {
        for other in hook.texts(field) {
            // The name is written to a line of the unit file, so it must not contain another line.
            unit_name(&format!("{FIELD}.{field}"), other)?;
            unit = unit.with("Unit", &[(key, other)]);
        }
    }
    if image.is_empty() {
        unit.append("Service", manifest);
    } else {
        unit = run_container(unit, name, image, hook);
    }
    Ok(Service::running(&file, Some(unit.render())))
}

/// Adds the entries that run a container once.
fn run_container(unit: Unit, name: &str, image: &str, hook: &Value) -> Unit {
    let mut image = image.to_owned();
    if !image.contains('/') {
        image = format!("docker.io/library/{image}");
    }
    if !image.contains(':') {
        image = format!("{image}:latest");
    }
    let ctr = ["/usr/bin/ctr", "--namespace", "k8s.io"].map(str::to_owned);
    let command = |words: &[&str]| -> Vec<String> {
        ctr.iter().cloned().chain(words.iter().map(|&word| word.to_owned())).collect()
    };
    let mut run = command(&[
        "run",
        "--rm",
        "--mount",
        "type=bind,src=/,dst=/rootfs,options=rbind:rslave",
        "--mount",
        "type=bind,src=/var/run/dbus,dst=/var/run/dbus,options=rbind:rprivate",
        "--mount",
        "type=bind,src=/run/systemd,dst=/run/systemd,options=rbind:rprivate",
        "--net-host",
        "--privileged",
    ]);
    for (variable, value) in hook.pairs("execContainer.environment") {
        let value = value.as_str().unwrap_or_default();
        run.extend(["--env".to_owned(), format!("{variable}={value}")]);
    }
    run.extend([image.clone(), name.to_owned()]);
    run.extend(hook.texts("execContainer.command").map(str::to_owned));
    let pull = command_line(&command(&["image", "pull", &image]));
    unit.with("Unit", &[("Requires", "containerd.service")])
        .with(
            "Service",
            &[("ExecStartPre", &pull), ("ExecStart", &command_line(&run)), ("Type", "oneshot")],
        )
        .with("Install", &[("WantedBy", "multi-user.target")])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_hooks_that_leave_their_file() {
        for (name, hook) in [
            ("../../etc/passwd", json!({"manifest": "ExecStart=/bin/true"})),
            (
                "a",
                json!({"manifest": "Type=oneshot", "requires": ["b.service\n[Service]\nExecStart=/bin/sh"]}),
            ),
            ("a", json!({"manifest": "Type=oneshot", "before": ["x y"]})),
            ("a", json!({})),
        ] {
            assert!(service(name, &hook).is_err(), "{name} {hook}");
        }
        let hook =
            json!({"execContainer": {"image": "busybox", "command": ["a\nExecStart=/bin/sh"]}});
        let unit = service("a", &hook).unwrap().definition.unwrap_or_default();
        assert!(
            unit.contains("\\x0aExecStart=") && !unit.contains("\nExecStart=/bin/sh"),
            "{unit}"
        );
    }

    #[test]
    fn stops_disabled_hook_without_a_file() {
        let stopped = service("timesyncd", &json!({"enabled": false})).unwrap();
        assert_eq!(stopped.name, "timesyncd.service");
        assert_eq!((stopped.running, stopped.enabled, stopped.definition), (false, false, None));
        let raw = json!({"useRawManifest": true, "manifest": "[Timer]\nOnCalendar=daily\n"});
        let raw = service("daily.timer", &raw).unwrap();
        assert_eq!(raw.definition.as_deref(), Some("[Timer]\nOnCalendar=daily\n"));
    }
}
