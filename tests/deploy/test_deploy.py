"""What `deploy/` promises agrees with the program and with itself: flags, variables, ports, paths,
and times. Images and clusters are not at hand here; what can be checked without them is.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.fake_service import make_engine

from tinyserve.cli.options import build_parser, configuration
from tinyserve.config import SECTIONS, TinyServeConfig
from tinyserve.config_sources import layer_from_env
from tinyserve.server.app import create_app
from tinyserve.server.run import GRACE_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OWN_VARIABLES = {"TINYSERVE_CACHE", "TINYSERVE_BACKEND"}
PORT = TinyServeConfig().server.port


def config_of(command: Sequence[str]) -> TinyServeConfig:
    """What `tinyserve serve` makes of these options; every one must be known."""
    return configuration(build_parser().parse_args(["serve", *command]))


def check_variables(variables: Mapping[str, str]) -> None:
    """Our variables must be settings (or one of the few that stand apart)."""
    ours = {k: v for k, v in variables.items() if k.startswith("TINYSERVE_")}
    layer_from_env({k: v for k, v in ours.items() if k not in OWN_VARIABLES}, SECTIONS)


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)(s|m)?", text)
    assert match is not None, text
    return int(match[1]) * (60 if match[2] == "m" else 1)


def routes() -> set[str]:
    return {getattr(route, "path", "") for route in create_app(make_engine()).routes}


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, arguments), continuation lines joined."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def arguments(name: str) -> list[str]:
    return [rest for word, rest in dockerfile() if word == name]


def image_variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in arguments("ENV") for pair in shlex.split(rest))


# -- Docker ---------------------------------------------------------------------------------------


def test_the_image_serves_on_the_port_it_exposes() -> None:
    variables = image_variables()
    check_variables(variables)
    assert variables["TINYSERVE_SERVER_HOST"] == "0.0.0.0"
    assert variables["TINYSERVE_SERVER_PORT"] == str(PORT)
    assert arguments("EXPOSE") == [str(PORT)]
    assert arguments("ENTRYPOINT") == ['["tinyserve", "serve"]']


def test_the_image_runs_as_nobody_and_keeps_models_in_its_volume() -> None:
    (user,) = arguments("USER")
    assert int(user) > 0
    (volume,) = arguments("VOLUME")
    variables = image_variables()
    for name in ("TINYSERVE_CACHE", "HF_HOME"):
        assert Path(variables[name]).is_relative_to(volume)
    words = [word for word, _ in dockerfile()]
    assert words.index("USER") > words.index("ENV"), "nothing is installed as that user"
    assert words.count("FROM") == 2, "the compiler stays behind"


def test_the_health_check_is_a_program_that_asks_health() -> None:
    (check,) = arguments("HEALTHCHECK")
    command = yaml.safe_load(check.partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "HEALTHCHECK", "exec")
    assert "/health" in command[2]
    assert "/health" in routes()


def test_the_health_check_knows_a_healthy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.live_server import live

    (check,) = arguments("HEALTHCHECK")
    command = yaml.safe_load(check.partition("CMD ")[2])[1:]

    def healthy(port: str) -> bool:
        monkeypatch.setenv("TINYSERVE_SERVER_PORT", port)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # as Docker passes them on
        run = subprocess.run([sys.executable, *command], capture_output=True, timeout=60)
        return run.returncode == 0

    with live(make_engine()) as served:
        port = served.base_url.rpartition(":")[2]
        assert healthy(port)
        served.state.is_draining = True
        assert not healthy(port)
        served.state.is_draining = False
    assert not healthy("1")


def test_the_image_is_built_from_what_there_is() -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    refused = [line.removeprefix("**/") for line in ignore if line.startswith("**/")]
    for rest in arguments("COPY"):
        if rest.startswith("--from"):
            continue
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in allowed, f"{source} is not sent to the builder"
    assert any(fnmatch("_kernels.so", pattern) for pattern in refused)


def test_what_the_image_greps_for_is_what_doctor_says(capsys: pytest.CaptureFixture[str]) -> None:
    from tinyserve.cli import doctor

    (grep,) = re.findall(r"grep -q '([^']+)'", (DEPLOY / "Dockerfile").read_text())
    found = dict(doctor.findings())
    assert re.search(grep, f"{'back end':<14} native (avx2): for any reason")
    assert not re.search(grep, f"{'back end':<14} numpy: for any reason")
    assert found["back end"].startswith(("native", "numpy"))


# -- compose --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def test_compose_starts_a_server_that_exists(compose: dict[str, Any]) -> None:
    service = compose["services"]["tinyserve"]
    config = config_of(service["command"])
    check_variables(dict.fromkeys(service["environment"], ""))
    context = DEPLOY / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).resolve() == (DEPLOY / "Dockerfile").resolve()
    grace = seconds(service["stop_grace_period"])
    assert grace > config.server.shutdown_timeout_s + GRACE_S
    (volume,) = service["volumes"]
    assert volume.partition(":")[2] == arguments("VOLUME")[0]


def test_compose_mounts_files_that_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), mount
                assert mount.endswith(":ro")
            else:
                assert source in compose["volumes"], f"{name}: {source}"


def test_compose_opens_nothing_to_the_network(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")


def test_prometheus_scrapes_the_server_and_grafana_asks_prometheus(compose: dict[str, Any]) -> None:
    services = compose["services"]
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    (target,) = scrape["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert name in services
    assert int(port) == PORT
    assert scrape["metrics_path"] in routes()
    provisioning = DEPLOY / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    host, _, number = sources["datasources"][0]["url"].removeprefix("http://").partition(":")
    assert host in services
    assert f"127.0.0.1:{number}:{number}" in services[host]["ports"]
    dashboards = yaml.safe_load((provisioning / "dashboards" / "tinyserve.yaml").read_text())
    folder = dashboards["providers"][0]["options"]["path"]
    assert any(f":{folder}/" in mount for mount in services["grafana"]["volumes"])


def test_an_empty_key_means_no_key() -> None:
    layer = layer_from_env({"TINYSERVE_API_KEY": ""}, SECTIONS)
    assert not layer["server"]["api_key"]


# -- systemd --------------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    """The unit's settings by name."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "tinyserve.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_starts_a_server_and_waits_for_its_end() -> None:
    settings = unit()
    program, command, *rest = shlex.split(settings["ExecStart"][0])
    assert (Path(program).name, command) == ("tinyserve", "serve")
    config = config_of(rest)
    assert seconds(settings["TimeoutStopSec"][0]) > config.server.shutdown_timeout_s + GRACE_S
    variables = dict(pair.split("=", 1) for pair in settings["Environment"][0].split())
    check_variables(variables)
    cache = f"/var/cache/{settings['CacheDirectory'][0]}"
    assert variables["TINYSERVE_CACHE"] == cache
    assert variables["HF_HOME"].startswith(cache)
    assert settings["RestartPreventExitStatus"] == ["2"]


def test_the_unit_is_hardened() -> None:
    settings = unit()
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "DynamicUser", "LockPersonality"):
        assert settings[name] == ["yes"]
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["CapabilityBoundingSet"] == [""]
    assert "ProcSubset" not in settings, "the server reads /proc/meminfo"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "tinyserve.service").read_text()
    copy = tmp_path / "tinyserve.service"
    copy.write_text(text.replace("/opt/tinyserve/bin/tinyserve", sys.executable))
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert "tinyserve.service" not in run.stderr


# -- Kubernetes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    loaded = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {manifest["kind"]: manifest for manifest in loaded}


def test_kubernetes_starts_a_server_that_exists(manifests: dict[str, dict[str, Any]]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    config = config_of(container["args"])
    check_variables({variable["name"]: "x" for variable in container["env"]})
    (port,) = container["ports"]
    assert port["containerPort"] == PORT
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(PORT)
    (service_port,) = manifests["Service"]["spec"]["ports"]
    assert service_port["targetPort"] == port["name"]
    assert manifests["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    before = float(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace > before + config.server.shutdown_timeout_s + GRACE_S


def test_no_probe_ends_a_server_that_is_still_loading(manifests: dict[str, dict[str, Any]]) -> None:
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]
        assert probe["httpGet"] == {"path": "/health", "port": container["ports"][0]["name"]}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600


def test_the_pod_may_write_where_the_image_writes(manifests: dict[str, dict[str, Any]]) -> None:
    spec = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert arguments("VOLUME")[0] in mounts
    assert "/tmp" in mounts
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(mounts.values()) == set(volumes)
    claim = volumes[mounts[arguments("VOLUME")[0]]]["persistentVolumeClaim"]["claimName"]
    assert claim == manifests["PersistentVolumeClaim"]["metadata"]["name"]
    assert str(spec["securityContext"]["runAsUser"]) == arguments("USER")[0]


# -- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda p: p.name)
def test_every_yaml_file_parses(path: Path) -> None:
    assert list(yaml.safe_load_all(path.read_text()))


def test_commands_in_comments_name_files_that_exist() -> None:
    for path in (p for p in DEPLOY.iterdir() if p.is_file()):
        for named in re.findall(r"deploy/[\w.-]+\w", path.read_text()):
            assert (ROOT / named).exists(), f"{path.name} names {named}"
