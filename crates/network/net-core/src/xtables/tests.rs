use super::*;

const JUMPS: [Jump; 1] = [Jump { table: "nat", from: "OUTPUT", rule: "-j MY-BASE" }];

fn chains(endpoints: &[&str]) -> Chains {
    let mut chains = Chains::new(Family::V4, &["MY-SVC-"], &JUMPS);
    let names: Vec<String> = endpoints.iter().map(|name| format!("MY-SVC-{name}")).collect();
    chains.chain("nat", "MY-BASE").extend(names.iter().map(|name| format!("-j {name}")));
    for name in &names {
        chains.chain("nat", name).push("-j ACCEPT".to_owned());
    }
    chains.seal();
    chains
}

fn installed(text: &str) -> BTreeMap<&'static str, InstalledTable> {
    BTreeMap::from([("nat", InstalledTable::parse(text))])
}

#[test]
fn restore_changes_only_differing_chains() {
    let (old, new) = (chains(&["A", "B"]), chains(&["A", "C"]));
    let (input, _) = restore(&old, &new);
    let lines: Vec<&str> = input.lines().filter(|line| !line.contains(STATE_CHAIN)).collect();
    assert_eq!(
        lines,
        [
            "*nat",
            ":MY-BASE - [0:0]",
            ":MY-SVC-C - [0:0]",
            ":MY-SVC-B - [0:0]",
            "-A MY-BASE -j MY-SVC-A",
            "-A MY-BASE -j MY-SVC-C",
            "-A MY-SVC-C -j ACCEPT",
            "-X MY-SVC-B",
            "COMMIT",
        ]
    );
    assert_eq!(restore(&new, &new), (String::new(), 0));
}

#[test]
fn resync_takes_over_earlier_chains() {
    let new = chains(&["A"]);
    let found = installed(":OUTPUT ACCEPT [0:0]\n:MY-SVC-OLD - [0:0]\n:OTHERS - [0:0]\n");
    assert!(!new.is_installed(&found));
    let (input, _) = resync(&found, &new);
    assert!(input.contains("-I OUTPUT -j MY-BASE\n"), "{input}");
    assert!(input.contains("-X MY-SVC-OLD\n") && !input.contains("OTHERS"), "{input}");

    let state = &new.rules("nat", STATE_CHAIN)[0];
    let there = format!(":MY-BASE - [0:0]\n-A OUTPUT -j MY-BASE\n-A {STATE_CHAIN} {state}\n");
    assert!(new.is_installed(&installed(&there)));
    assert!(!chains(&["B"]).is_installed(&installed(&there)), "another digest");
    let without = there.replace("-A OUTPUT -j MY-BASE\n", "");
    assert!(!new.is_installed(&installed(&without)), "nothing leads to it");
    assert!(!resync(&installed(&there), &new).0.contains("-I "), "it is led to already");
}

#[test]
fn removal_keeps_foreign_chains() {
    let found = InstalledTable::parse(
        ":OUTPUT ACCEPT [0:0]\n:MY-BASE - [0:0]\n:MY-SVC-A - [0:0]\n:OTHERS - [0:0]\n\
         -A OUTPUT -m comment --comment \"not -j yet\" -j MY-BASE\n-A OUTPUT -j OTHERS\n-A MY-BASE -j MY-SVC-A\n-A OTHERS -d 10.0.0.1 -g MY-BASE\n",
    );
    let is_mine = |name: &str| name.starts_with("MY-");
    let (count, input) = removal("nat", &found, &is_mine);
    assert_eq!(
        (count, input.as_str()),
        (
            2,
            "*nat\n:MY-BASE - [0:0]\n:MY-SVC-A - [0:0]\n-D OTHERS -d 10.0.0.1 -g MY-BASE\n\
             -D OUTPUT -m comment --comment \"not -j yet\" -j MY-BASE\n-X MY-BASE\n-X MY-SVC-A\nCOMMIT\n"
        )
    );
    assert_eq!(removal("nat", &found, &|_| false), (0, String::new()));
}
