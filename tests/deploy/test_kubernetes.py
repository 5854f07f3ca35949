"""The overlays of deploy/kubernetes: they render, fit the schemas of Kubernetes, and agree with the configuration that they carry."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from deploy.test_alerts import RULES, existing, rules
from deploy.test_deploy import locked, pinned
from millgate.config.load import load_config
from millgate.config.schema import Config
from millgate.config.values import is_loopback
from millgate.gateway.discovery import FIRST_LOOK_S

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
OVERLAYS = ("gateway", "redis", "extproc")
# The oldest release whose `sleep` before a stop needs no feature gate, and one that is newer than any overlay.
RELEASES = ("1.30", "1.37")
CUSTOM = {"ServiceMonitor", "PrometheusRule"}
DRAIN_MARGIN_S = 1.0
SECRETS = {
    "MILLGATE_ADMIN_TOKEN": "sixteen-characters",
    "ENGINE_KEY": "x",
    "MILLGATE_REDIS_PASSWORD": "x",
    "MILLGATE_TICKET_KEY": "ab" * 32,
}
"""The section of the configuration that makes an overlay what it is."""

Item = dict[str, Any]

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")


@cache
def rendered(overlay: str) -> tuple[Item, ...]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / "overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return tuple(yaml.safe_load_all(done.stdout))


def kinds(overlay: str, kind: str) -> dict[str, Item]:
    return {item["metadata"]["name"]: item for item in rendered(overlay) if item["kind"] == kind}


def gate(overlay: str) -> Item:
    pod: Item = kinds(overlay, "Deployment")["millgate"]["spec"]["template"]["spec"]
    return pod


def container(overlay: str) -> Item:
    (found,) = gate(overlay)["containers"]
    return dict(found)


def written(overlay: str) -> str:
    """Return the configuration that the gate's pod is given."""
    (volume,) = gate(overlay)["volumes"]
    text: str = kinds(overlay, "ConfigMap")[volume["configMap"]["name"]]["data"]["gate.yaml"]
    return text


def config(overlay: str, folder: Path) -> Config:
    file = folder / "gate.yaml"
    file.write_text(written(overlay), encoding="utf-8")
    return load_config(file, SECRETS).config


def pods(overlay: str) -> Iterator[tuple[str, Item]]:
    for name, deployment in kinds(overlay, "Deployment").items():
        yield name, deployment["spec"]["template"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_fits_the_schemas(overlay: str, release: str) -> None:
    checked = [item for item in rendered(overlay) if item["kind"] not in CUSTOM]
    assert len(checked) > 8
    for item in checked:
        assert kubernetes_validate.validate(item, release, strict=True) == release


def test_the_schemas_notice_what_is_wrong() -> None:
    wrong = {**rendered("gateway")[0], "spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, RELEASES[0], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_pods_and_ports_have_names_that_there_are(overlay: str) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(overlay)} | {
        "vllm": {"app.kubernetes.io/name": "vllm"}  # the engines' own deployment
    }
    ports = {
        name: {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
        for name, pod in pods(overlay)
    }

    def chosen(selector: Item) -> str:
        (name,) = [name for name, known in labels.items() if selector.items() <= known.items()]
        return name

    for deployment in kinds(overlay, "Deployment").values():
        assert chosen(deployment["spec"]["selector"]["matchLabels"]) == deployment["metadata"]["name"]
    for budget in kinds(overlay, "PodDisruptionBudget").values():
        assert chosen(budget["spec"]["selector"]["matchLabels"]) == budget["metadata"]["name"]
    for service in kinds(overlay, "Service").values():
        pod = chosen(service["spec"]["selector"])
        if pod != "vllm":
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[pod]
    for policy in kinds(overlay, "NetworkPolicy").values():
        pod = chosen(policy["spec"]["podSelector"]["matchLabels"])
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= ports[pod]
    for _name, template in pods(overlay):
        for spread in template["spec"].get("topologySpreadConstraints", ()):
            assert spread["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_prometheus_is_led_to_the_admin_door(overlay: str) -> None:
    """What the custom resource may hold is not in the schemas: it is compared with what it leads to."""
    (monitor,) = kinds(overlay, "ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = [
        service
        for service in kinds(overlay, "Service").values()
        if wanted.items() <= service["metadata"].get("labels", {}).items()
    ]

    assert (monitor["apiVersion"], set(endpoint)) == (
        "monitoring.coreos.com/v1",
        {"port", "path", "interval", "authorization"},
    )
    assert [port["name"] for service in services for port in service["spec"]["ports"]] == [endpoint["port"]]
    # The value of this label is the job of the alert rules.
    assert services[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "millgate"
    token = {env["name"]: env for env in container(overlay)["env"]}["MILLGATE_ADMIN_TOKEN"]
    assert endpoint["authorization"]["credentials"] == token["valueFrom"]["secretKeyRef"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_configuration_is_accepted_and_the_ports_are_those_of_the_pod(
    overlay: str, tmp_path: Path
) -> None:
    settings = config(overlay, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in container(overlay)["ports"]}

    assert ports["admin"] == settings.admin.port
    assert not is_loopback(settings.admin.host)
    if "http" in ports:
        assert (ports["http"], is_loopback(settings.listen.host)) == (settings.listen.port, False)
    assert [engine.discover for engine in settings.engines] == ["dns"]
    (mount,) = container(overlay)["volumeMounts"]
    assert container(overlay)["args"][-1] == f"{mount['mountPath']}/gate.yaml"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_engines_are_the_addresses_of_a_headless_service_that_the_policy_opens(overlay: str) -> None:
    (engine,) = yaml.safe_load(written(overlay))["engines"]
    host, port = re.fullmatch(r"http://([\w-]+):(\d+)", engine["url"]).groups()  # type: ignore[union-attr]
    service = kinds(overlay, "Service")[host]["spec"]
    egress = kinds(overlay, "NetworkPolicy")["millgate"]["spec"]["egress"]

    assert service["clusterIP"] == "None"
    assert service["ports"][0]["port"] == int(port)
    assert {
        "to": [{"podSelector": {"matchLabels": service["selector"]}}],
        "ports": [{"port": int(port)}],
    } in egress


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_secret_that_the_configuration_reads_is_given_from_the_secret(overlay: str) -> None:
    given = {env["name"] for env in container(overlay)["env"]}
    assert all(env["valueFrom"]["secretKeyRef"]["name"] == "millgate" for env in container(overlay)["env"])
    named = set(re.findall(r"_env: (\w+)", written(overlay)))
    assert named <= given
    assert "MILLGATE_ADMIN_TOKEN" in given


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_the_admin_door_and_a_stop_waits_longer_than_the_drain(overlay: str) -> None:
    own = container(overlay)
    probes = {name: own[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness", "startup")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "liveness": "/healthz",
        "readiness": "/readyz",
        "startup": "/healthz",
    }
    assert {probe["port"] for probe in probes.values()} == {"admin"}
    minutes = re.search(r"drain_grace: (\d+)m", written(overlay))
    assert minutes is not None
    before_s = own["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = 60 * int(minutes[1]) + DRAIN_MARGIN_S
    assert gate(overlay)["terminationGracePeriodSeconds"] > before_s + drain_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_is_root_writes_its_image_or_keeps_a_capability(overlay: str) -> None:
    for _name, pod in pods(overlay):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "hostNetwork" not in spec
        for each in (*spec["containers"], *spec.get("initContainers", ())):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert pinned(each["image"]), each["image"]
            assert {"cpu", "memory"} <= set(each["resources"]["requests"])
            assert "memory" in each["resources"]["limits"]
            assert "cpu" not in each["resources"]["limits"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_lost_packet_of_the_name_server_is_asked_again_while_a_start_still_waits(overlay: str) -> None:
    options = {each["name"]: each["value"] for each in gate(overlay)["dnsConfig"]["options"]}

    assert int(options["timeout"]) * 2 < FIRST_LOOK_S
    assert int(options["attempts"]) > 1


def test_the_gate_takes_no_token_of_the_cluster() -> None:
    account = kinds("gateway", "ServiceAccount")[gate("gateway")["serviceAccountName"]]
    assert account["automountServiceAccountToken"] is False


def test_one_gate_that_shares_nothing_is_alone_and_with_a_store_there_are_three() -> None:
    replicas = {overlay: kinds(overlay, "Deployment")["millgate"]["spec"]["replicas"] for overlay in OVERLAYS}
    assert replicas == {"gateway": 1, "redis": 3, "extproc": 1}


def test_the_store_is_reached_by_gates_alone_and_keeps_nothing() -> None:
    settings = yaml.safe_load(written("redis"))["cluster"]
    host, port = re.fullmatch(r"redis://([\w-]+):(\d+)/0", settings["store"]).groups()  # type: ignore[union-attr]
    service = kinds("redis", "Service")[host]
    policies = kinds("redis", "NetworkPolicy")
    (source,) = policies[host]["spec"]["ingress"]
    arguments = kinds("redis", "Deployment")[host]["spec"]["template"]["spec"]["containers"][0]["args"]

    assert service["spec"]["ports"][0]["port"] == int(port)
    assert source["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "millgate"}}}]
    assert {
        "to": [{"podSelector": {"matchLabels": service["spec"]["selector"]}}],
        "ports": [{"port": int(port)}],
    } in policies["millgate"]["spec"]["egress"]
    assert arguments[:4] == ["--save", "", "--appendonly", "no"]
    assert "redis" in locked("full.lock")


def test_envoy_alone_reaches_the_processor_and_has_the_configuration_that_the_gate_prints() -> None:
    policy = kinds("extproc", "NetworkPolicy")["millgate"]["spec"]["ingress"]
    service = kinds("extproc", "Service")["millgate"]["spec"]["ports"]
    (init,) = kinds("extproc", "Deployment")["envoy"]["spec"]["template"]["spec"]["initContainers"]
    settings = yaml.safe_load(written("extproc"))["extproc"]

    assert policy[0]["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "envoy"}}}]
    assert policy[0]["ports"] == [{"port": "grpc"}]
    assert [(port["name"], port["port"]) for port in service] == [("grpc", settings["port"])]
    assert init["image"] == container("extproc")["image"]
    assert f"--extproc-at millgate:{settings['port']}" in init["args"][0]
    assert container("extproc")["args"][0] == "extproc"
    assert "grpcio" in locked("full.lock")


def adapter() -> list[Item]:
    text = (FOLDER / "prometheus-adapter/rules.yaml").read_text(encoding="utf-8")
    rules: list[Item] = yaml.safe_load(text)["externalRules"]
    return rules


def test_the_autoscaler_reads_metrics_that_the_adapter_has() -> None:
    (scaler,) = kinds("gateway", "HorizontalPodAutoscaler").values()
    wanted = {metric["external"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    assert wanted == {rule["name"]["as"] for rule in adapter()}
    assert scaler["spec"]["scaleTargetRef"]["name"] == "vllm"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_operator_is_given_the_rules_that_alert_and_that_the_autoscaler_reads(overlay: str) -> None:
    """The operator loads no file: a cluster had no alert, and an autoscaler that lacked one metric and so never scaled down."""
    (given,) = kinds(overlay, "PrometheusRule").values()

    assert given["apiVersion"] == "monitoring.coreos.com/v1"
    assert given["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8")), "run `make rules`"


def test_an_outage_of_all_engines_takes_none_of_them_away() -> None:
    """All pods crash for an hour, every number of load is 0, and the autoscaler left one of eight for the morning."""
    (scaler,) = kinds("gateway", "HorizontalPodAutoscaler").values()
    targets = {
        metric["external"]["metric"]["name"]: metric["external"]["target"]
        for metric in scaler["spec"]["metrics"]
    }
    series = {rule["name"]["as"]: rule["seriesQuery"] for rule in adapter()}
    (recorded,) = [rule for rule in rules() if rule.get("record") == series["millgate_occupancy"]]

    assert targets["millgate_occupancy"] == {"type": "Value", "value": "800m"}
    assert recorded["expr"].rstrip().endswith("+ 0.8")


def test_a_gate_of_staging_adds_no_engines_to_production() -> None:
    """Without the namespace among the matchers the adapter answers with the mean of every gate of the cluster."""
    for rule in adapter():
        assert rule["resources"] == {"overrides": {"namespace": {"resource": "namespace"}}}
        assert "<<.LabelMatchers>>" in rule["metricsQuery"]


def test_the_adapter_reads_series_that_there_are() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in adapter():
        series = rule["seriesQuery"]
        assert series in recorded | existing()
        assert re.fullmatch(r"\w+\(<<\.Series>>\{<<\.LabelMatchers>>\}\)", rule["metricsQuery"])
