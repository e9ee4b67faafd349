//! Kernel arguments.

use crate::spec::KernelArguments;

/// Applies the arguments of a config to a kernel command line; `None` if it needs no change.
pub fn apply(line: &str, arguments: &KernelArguments) -> Option<String> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let before = words.clone();
    let removed = arguments.should_not_exist.iter().flat_map(|text| text.split_whitespace());
    for argument in removed {
        words.retain(|word| *word != argument);
    }
    for argument in arguments.should_exist.iter().flat_map(|text| text.split_whitespace()) {
        if !words.contains(&argument) {
            words.push(argument);
        }
    }
    (words != before).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_and_removes_arguments_once() {
        for (line, exist, not, want) in [
            ("a b", vec!["c"], vec!["a"], Some("b c")),
            ("a b", vec!["a", "b"], vec!["c"], None),
            ("a=1 a=2", vec!["x=1 y=2"], vec!["a=1"], Some("a=2 x=1 y=2")),
            ("", vec![], vec![], None),
        ] {
            let texts = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
            let arguments =
                KernelArguments { should_exist: texts(exist), should_not_exist: texts(not) };
            assert_eq!(apply(line, &arguments).as_deref(), want, "{line}");
        }
    }
}
