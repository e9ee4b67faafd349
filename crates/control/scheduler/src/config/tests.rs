use super::*;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

/// Applies a file with this text after its head.
fn read(rest: &str) -> Result<Config, String> {
    let value = api_config::yaml::parse(&format!("{HEAD}{rest}")).unwrap();
    read_value(value)
}

fn read_value(mut value: serde_json::Value) -> Result<Config, String> {
    without_effect(&mut value);
    let file = decode::<KubeSchedulerConfiguration>("KubeSchedulerConfiguration", value)
        .and_then(|decoded| decoded.checked(Strictness::Refuse))
        .map_err(|error| error.to_string())?;
    let mut config = Config::default();
    let errors = apply(&mut config, file.value);
    if errors.is_empty() { Ok(config) } else { Err(aggregate(&errors)) }
}

/// The profiles as text: equal texts decide alike.
fn text(config: &Config) -> String {
    format!("{:?}", config.profiles)
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn rejects_unsupported_settings_by_field() {
    let args = |plugin: &str, args: &str| {
        format!("profiles: [{{pluginConfig: [{{name: {plugin}, args: {{{args}}}}}]}}]")
    };
    let plugins = |plugins: &str| format!("profiles: [{{plugins: {{{plugins}}}}}]");
    let cases = [
        ("extenders: [{urlPrefix: ftp://a}]".to_owned(), "must be a URL with http or https"),
        ("extenders: [{urlPrefix: 'http://a?b'}]".into(), "must have no query"),
        ("extenders: [{urlPrefix: http://a, unknown: 1}]".into(), "unknown field"),
        (
            "extenders: [{urlPrefix: http://a, prioritizeVerb: p}]".into(),
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
        ),
        (
            "extenders: [{urlPrefix: http://a, bindVerb: b}, {urlPrefix: http://b, bindVerb: b}]"
                .into(),
            "extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender can",
        ),
        (
            "extenders: [{urlPrefix: http://a, managedResources: [{name: cpu}]}]".into(),
            "extenders[0].managedResources[0].name: Invalid value: \"cpu\": is an invalid extended",
        ),
        (
            "extenders: [{urlPrefix: http://a, managedResources: [{name: a.b/c}, {name: a.b/c}]}]"
                .into(),
            "managedResources[1].name: Invalid value: \"a.b/c\": duplicate extender managed resource",
        ),
        ("extenders: [{urlPrefix: http://a, httpTimeout: -1s}]".into(), "must not be negative"),
        (
            "extenders: [{urlPrefix: https://a, tlsConfig: {insecure: true, caData: YQ==}}]".into(),
            "specifying a root certificates file with the insecure flag is not allowed",
        ),
        (
            "extenders: [{urlPrefix: https://a, tlsConfig: {insecure: true, certData: YQ==}}]"
                .into(),
            "a client certificate and its key are needed together",
        ),
        (
            "extenders: [{urlPrefix: https://a, tlsConfig: {caData: '%'}}]".into(),
            "caData is not base64",
        ),
        ("nonsense: 1".into(), "unknown field \"nonsense\""),
        ("profiles: [{plugin: {}}]".into(), "unknown field \"profiles[0].plugin\""),
        (
            "parallelism: 0".into(),
            "parallelism: Invalid value: 0: should be an integer value greater than zero",
        ),
        (
            "podInitialBackoffSeconds: 0".into(),
            "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "podMaxBackoffSeconds: 1\npodInitialBackoffSeconds: 2".into(),
            "podMaxBackoffSeconds: Invalid value: 1",
        ),
        (
            "percentageOfNodesToScore: 101".into(),
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
        ),
        ("leaderElection: {resourceLock: configmaps}".into(), "leaderElection.resourceLock"),
        (
            "leaderElection: {leaseDuration: 5s}".into(),
            "LeaseDuration must be greater than RenewDeadline",
        ),
        ("profiles: [{schedulerName: ''}]".into(), "profiles[0].schedulerName: Required value"),
        (
            "profiles: [{}, {schedulerName: default-scheduler}]".into(),
            "profiles[1].schedulerName: Duplicate value",
        ),
        (
            plugins("filter: {enabled: [{name: NoSuch}]}"),
            "profiles[0].plugins.filter.enabled[0]: Invalid value: \"NoSuch\": FilterPlugin \"NoSuch\" does not exist",
        ),
        (
            plugins("multiPoint: {enabled: [{name: NoSuch}]}"),
            "profiles[0].plugins.multiPoint.enabled[0]",
        ),
        (
            plugins("permit: {enabled: [{name: NodeName}]}"),
            "plugin \"NodeName\" does not extend PermitPlugin plugin",
        ),
        (
            plugins("filter: {enabled: [{name: NodeName}, {name: NodeName}]}"),
            "already registered as \"filter\"",
        ),
        (
            plugins("filter: {disabled: [{name: NodeAffinity}]}"),
            "profiles[0].plugins.filter: Forbidden: NodeAffinity",
        ),
        (
            plugins("preFilter: {disabled: [{name: '*'}]}"),
            "profiles[0].plugins.preFilter: Forbidden",
        ),
        (
            plugins("reserve: {disabled: [{name: VolumeBinding}]}"),
            "profiles[0].plugins.reserve: Forbidden: VolumeBinding",
        ),
        (plugins("preScore: {disabled: [{name: '*'}]}"), "profiles[0].plugins.preScore: Forbidden"),
        (plugins("queueSort: {disabled: [{name: '*'}]}"), "PrioritySort cannot be disabled"),
        (plugins("multiPoint: {disabled: [{name: '*'}]}"), "DefaultBinder cannot be disabled"),
        (args("NoSuch", "a: 1"), "profiles[0].pluginConfig[0]: Invalid value: \"NoSuch\""),
        (
            args("NodeName", "a: 1"),
            "profiles[0].pluginConfig[0].args: Forbidden: the plugin takes no arguments",
        ),
        (
            args("NodeAffinity", "kind: NodeResourcesFitArgs"),
            "pluginConfig[0].args.kind: Invalid value",
        ),
        (args("NodeAffinity", "added: {}"), "pluginConfig[0].args.added: Forbidden: unknown field"),
        (
            args(
                "NodeAffinity",
                "addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Near}]}]}}",
            ),
            "not a valid selector operator",
        ),
        (
            args("InterPodAffinity", "hardPodAffinityWeight: 5"),
            "args.hardPodAffinityWeight: Invalid value: 5: is not acted on",
        ),
        (args("InterPodAffinity", "hardPodAffinityWeight: 101"), "not in valid range [0, 100]"),
        (
            args("InterPodAffinity", "ignorePreferredTermsOfExistingPods: true"),
            "args.ignorePreferredTermsOfExistingPods",
        ),
        (args("NodeResourcesFit", "ignoredResources: [a.b/c/d]"), "args.ignoredResources[0]"),
        (
            args("NodeResourcesFit", "scoringStrategy: {type: RequestedToCapacityRatio}"),
            "args.scoringStrategy.type",
        ),
        (
            args("NodeResourcesFit", "scoringStrategy: {type: Best}"),
            "supported values: \"LeastAllocated\"",
        ),
        (
            args(
                "NodeResourcesFit",
                "scoringStrategy: {type: MostAllocated, resources: [{name: nvidia.com/gpu, weight: 1}]}",
            ),
            "only cpu and memory are scored",
        ),
        (
            args("NodeResourcesBalancedAllocation", "resources: [{name: cpu, weight: 1}]"),
            "only cpu and memory are balanced",
        ),
        (
            args(
                "PodTopologySpread",
                "defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule}]",
            ),
            "when .defaultConstraints are not empty",
        ),
        (
            args(
                "PodTopologySpread",
                "defaultingType: List, defaultConstraints: [{maxSkew: 0, topologyKey: z, whenUnsatisfiable: Sometimes}]",
            ),
            "whenUnsatisfiable: Unsupported value: \"Sometimes\"",
        ),
        (args("VolumeBinding", "bindTimeoutSeconds: -1"), "should not be a negative value"),
        (args("VolumeBinding", "shape: []"), "unexpected field `shape`"),
        (
            args("DynamicResources", "filterTimeout: 3s"),
            "args.filterTimeout: Invalid value: \"3s\": is not acted on",
        ),
        (
            args(
                "DefaultPreemption",
                "minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0",
            ),
            "cannot be zero at the same time",
        ),
    ];
    for (rest, expected) in cases {
        let error = read(&rest).expect_err(&rest);
        assert!(error.contains(expected), "{rest}\n{error}");
    }
}

#[test]
fn accepts_upstream_defaults() {
    let version = SCHEDULER_VERSION;
    let args = |name: &str, args: serde_json::Value| {
        let mut args = args;
        args["apiVersion"] = version.into();
        args["kind"] = format!("{name}Args").into();
        serde_json::json!({"name": name, "args": args})
    };
    let enabled = |(name, weight): (&str, i64)| serde_json::json!({"name": name, "weight": weight});
    let cpu_and_memory =
        serde_json::json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
    let names = [
        ("SchedulingGates", 0),
        ("PrioritySort", 0),
        ("NodeUnschedulable", 0),
        ("NodeName", 0),
        ("TaintToleration", 3),
        ("NodeAffinity", 2),
        ("NodePorts", 0),
        ("NodeResourcesFit", 1),
        ("VolumeRestrictions", 0),
        ("NodeVolumeLimits", 0),
        ("VolumeBinding", 0),
        ("VolumeZone", 0),
        ("PodTopologySpread", 2),
        ("InterPodAffinity", 2),
        ("NodeDeclaredFeatures", 0),
        ("DynamicResources", 2),
        ("DefaultPreemption", 0),
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
        ("DefaultBinder", 0),
    ];
    let mut plugins = serde_json::json!({"multiPoint": {"enabled": names.map(enabled)}});
    for point in ["bind", "filter", "permit", "postBind", "postFilter", "preBind", "preEnqueue"] {
        plugins[point] = serde_json::json!({});
    }
    let file = serde_json::json!({
        "apiVersion": version,
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"acceptContentTypes": "", "burst": 100, "kubeconfig": "/a",
            "contentType": "application/vnd.kubernetes.protobuf", "qps": 50},
        "delayCacheUntilActive": false,
        "enableContentionProfiling": true,
        "enableProfiling": true,
        "leaderElection": {"leaderElect": true, "leaseDuration": "15s", "renewDeadline": "10s",
            "resourceLock": "leases", "resourceName": "kube-scheduler",
            "resourceNamespace": "kube-system", "retryPeriod": "2s"},
        "parallelism": 16,
        "percentageOfNodesToScore": 0,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 10,
        "profiles": [{
            "schedulerName": "default-scheduler",
            "plugins": plugins,
            "pluginConfig": [
                args("DefaultPreemption", serde_json::json!({
                    "minCandidateNodesAbsolute": 100, "minCandidateNodesPercentage": 10})),
                args("DynamicResources", serde_json::json!({
                    "bindingTimeout": "10m0s", "filterTimeout": "10s"})),
                args("InterPodAffinity", serde_json::json!({
                    "hardPodAffinityWeight": 1, "ignorePreferredTermsOfExistingPods": false})),
                args("NodeAffinity", serde_json::json!({})),
                args("NodeResourcesBalancedAllocation",
                    serde_json::json!({"resources": cpu_and_memory})),
                args("NodeResourcesFit", serde_json::json!({"scoringStrategy": {
                    "type": "LeastAllocated", "resources": cpu_and_memory}})),
                args("PodTopologySpread", serde_json::json!({"defaultingType": "System"})),
                args("VolumeBinding", serde_json::json!({"bindTimeoutSeconds": 600})),
            ],
        }],
    });
    let (given, default) = (read_value(file).unwrap(), Config::default());
    assert_eq!(text(&given), text(&default));
    assert_eq!(given.lease.lease_duration, default.lease.lease_duration);
    assert_eq!(text(&read("").unwrap()), text(&default));
}

#[test]
fn compiles_profiles() {
    let config = read(
        "percentageOfNodesToScore: 30
leaderElection: {resourceName: mine, leaseDuration: 30s}
profiles:
- schedulerName: default-scheduler
- schedulerName: quiet
  percentageOfNodesToScore: 70
  plugins:
    preScore: {disabled: [{name: '*'}]}
    score: {disabled: [{name: '*'}]}
    postFilter: {disabled: [{name: DefaultPreemption}]}
  pluginConfig:
  - {name: VolumeBinding, args: {bindTimeoutSeconds: 5}}
- schedulerName: packed
  plugins:
    multiPoint: {disabled: [{name: TaintToleration}, {name: VolumeBinding}], enabled: [{name: NodeAffinity, weight: 7}]}
    score: {enabled: [{name: ImageLocality, weight: 9}]}
  pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}]}}}
",
    )
    .unwrap();
    assert_eq!((&*config.lease.name, config.lease.lease_duration.as_secs()), ("mine", 30));
    let [first, quiet, packed] = &config.profiles[..] else { panic!("{config:?}") };
    let mut expected = sched_core::Profile::default();
    expected.percentage_of_nodes_to_score = 30;
    assert_eq!(format!("{:?}", first.core), format!("{expected:?}"));
    let mut expected = sched_core::Profile::new("quiet");
    expected.percentage_of_nodes_to_score = 70;
    expected.preempts = false;
    for plugin in sched_core::plugins::registry() {
        expected.set_weight(plugin.name(), 0);
    }
    assert_eq!(format!("{:?}", quiet.core), format!("{expected:?}"));
    assert_eq!(quiet.bind_timeout.as_secs(), 5);
    let mut expected = sched_core::Profile::new("packed");
    expected.percentage_of_nodes_to_score = 30;
    expected.fit = sched_core::FitScoring { most_allocated: true, cpu: 3, memory: 0 };
    expected.set_filter("TaintToleration", false);
    expected.set_filter("VolumeBinding", false);
    for (plugin, weight) in [("TaintToleration", 0), ("NodeAffinity", 7), ("ImageLocality", 9)] {
        expected.set_weight(plugin, weight);
    }
    assert_eq!(format!("{:?}", packed.core), format!("{expected:?}"));
}

#[test]
fn reports_path_of_invalid_file() {
    let path = std::env::temp_dir().join(format!("scheduler-file-{}", std::process::id()));
    std::fs::write(&path, format!("{HEAD}extenders: [{{urlPrefix: ftp://a}}]\n")).unwrap();
    let error = apply_file(&mut Config::default(), &path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains(&*path.to_string_lossy()) && error.contains("extenders"), "{error}");
}

#[test]
fn lists_every_plugin_of_core() {
    let mut core = sched_core::Profile::default();
    for plugin in sched_core::plugins::registry() {
        assert!(core.set_filter(plugin.name(), true));
        // GangScheduling exists with its feature gate only, and profiles cannot name it.
        let is_known = profile_config::is_known(plugin.name());
        assert!(is_known || plugin.name() == "GangScheduling", "{}", plugin.name());
    }
}

#[test]
fn applies_leader_election_flags() {
    type Cli = api_config::CommandLine<Args>;
    let config = |flags: &[&str]| {
        let cli = <Cli as clap::Parser>::try_parse_from([&["kube-scheduler"], flags].concat());
        cli.unwrap().args.config(FeatureGates::default())
    };
    let own = config(&[
        "--leader-elect-lease-duration=60s",
        "--leader-elect-renew-deadline=40s",
        "--leader-elect-resource-name=second",
        "--leader-elect-resource-namespace=apps",
    ]);
    let lease = own.unwrap().lease;
    assert_eq!((&*lease.namespace, &*lease.name), ("apps", "second"));
    assert_eq!((lease.lease_duration.as_secs(), lease.renew_deadline.as_secs()), (60, 40));
    for (flag, words) in [
        ("--leader-elect-lease-duration=10s", "LeaseDuration must be greater than RenewDeadline"),
        ("--leader-elect-retry-period=-1s", "leaderElection.retryPeriod: Invalid value"),
        ("--leader-elect-resource-name=", "leaderElection.resourceName: Required value"),
        ("--leader-elect-resource-lock=endpoints", "resourceLock value must be"),
    ] {
        let error = config(&[flag]).unwrap_err().to_string();
        assert!(error.contains(words), "{flag}: {error}");
    }
}
