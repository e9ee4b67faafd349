//! Boolean flags as Go's flag packages parse them.

/// Adds Go's forms of flags to arguments of clap, as methods for `#[arg(...)]`.
pub trait GoFlag {
    /// Accepts `--flag`, `--flag=true` and `--flag=false`. The default is a setting of its own.
    #[must_use]
    fn go_bool(self) -> Self;
}

impl GoFlag for clap::Arg {
    fn go_bool(self) -> Self {
        self.num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .action(clap::ArgAction::Set)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[arg(long, go_bool(), default_value_t = true)]
        on: bool,
        #[arg(long, go_bool())]
        unset: Option<bool>,
    }

    #[test]
    fn parses_booleans_as_go_does() {
        let parse = |arguments: &[&str]| {
            let flags = Flags::try_parse_from(["x"].iter().chain(arguments)).ok()?;
            Some((flags.on, flags.unset))
        };
        assert_eq!(parse(&[]), Some((true, None)));
        assert_eq!(parse(&["--on", "--unset"]), Some((true, Some(true))));
        assert_eq!(parse(&["--on=false", "--unset=false"]), Some((false, Some(false))));
        assert_eq!(parse(&["--on=maybe"]), None);
        assert_eq!(parse(&["--on", "false"]), None);
    }
}
