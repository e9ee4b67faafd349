//! The command lines of the static Pods.

use api_config::kubeadm::Arg;

/// Returns the command line of a component: sorted defaults without those in `extra`, then `extra` in its order.
pub(super) fn command(
    program: &str,
    mut defaults: Vec<(&str, String)>,
    extra: &[Arg],
) -> Vec<String> {
    defaults.retain(|(name, _)| !extra.iter().any(|arg| arg.name == *name));
    let mut command: Vec<String> =
        defaults.into_iter().map(|(name, value)| format!("--{name}={value}")).collect();
    command.sort();
    command.insert(0, program.to_owned());
    command.extend(extra.iter().map(|arg| format!("--{}={}", arg.name, arg.value)));
    command
}

/// Returns the value of a flag in `extra`. The last one wins, as in the component.
pub(super) fn value<'a>(extra: &'a [Arg], name: &str) -> Option<&'a str> {
    extra.iter().rfind(|arg| arg.name == name).map(|arg| arg.value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_arguments_replace_defaults_in_order() {
        let extra = [Arg::new("z", "1"), Arg::new("b", "new"), Arg::new("z", "2")];
        let command =
            command("x", vec![("c", "3".into()), ("b", "old".into()), ("a", "1".into())], &extra);
        assert_eq!(command, ["x", "--a=1", "--c=3", "--z=1", "--b=new", "--z=2"]);
        assert_eq!(value(&extra, "z"), Some("2"));
    }
}
