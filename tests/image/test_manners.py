"""What every image owes its users: a small environment, plain entry, readable files, nothing left from the build."""

from __future__ import annotations

from testinfra.host import Host

from image.subject import Subject
from lockstep.render import image_env


def test_B7_A10_E7_F1_environment_is_the_allow_list(subject: Subject) -> None:
    assert subject.config.env == image_env(list(subject.backends))


def test_labels_are_those_of_the_oci_convention(subject: Subject) -> None:
    assert subject.config.labels["org.opencontainers.image.title"] == subject.image
    assert {name for name in subject.config.labels if not name.startswith("org.opencontainers.image.")} == set()


def test_B6_entrypoint_passes_the_command_through(host: Host, subject: Subject) -> None:
    assert subject.config.entrypoint == ["/opt/lockstep/entrypoint"]
    assert host.check_output("/opt/lockstep/entrypoint sh -c %s", "echo ok; echo $#") == "ok\n0"
    assert host.file("/bin/sh").exists


def test_A10_no_compatibility_driver_in_the_linker_cache(host: Host) -> None:
    listed = host.check_output("/sbin/ldconfig -p")
    assert "/compat" not in listed
    assert "libcuda.so" not in listed


def test_E7_nothing_is_preloaded(host: Host) -> None:
    assert not host.file("/etc/ld.so.preload").exists
    assert host.run("true").stderr == ""


def test_E3_no_driver_stub_on_a_runtime_path(host: Host) -> None:
    """A stub libcuda that the loader finds hides the real driver's absence until the first kernel."""
    found = host.check_output("find / -xdev -name 'libcuda.so*' -not -path '*/stubs/*' 2>/dev/null || true")
    assert found == ""


def test_everything_is_readable_by_any_user(host: Host, subject: Subject) -> None:
    command = "find /opt /workspace -xdev ! -type l \\( ! -perm -0444 -o -type d ! -perm -0111 \\) | head"
    if subject.user != "root":
        command = "find /opt -xdev ! -readable ! -type l | head"
    assert host.check_output(command) == ""


def test_F2_no_cache_and_no_link_out_of_a_venv(host: Host) -> None:
    assert host.check_output("ls -d /var/cache/uv /root/.cache /var/cache/pip 2>/dev/null || true") == ""
    links = host.check_output("find /opt/venvs -xdev -type l -printf '%p %l\\n'").splitlines()
    out = [line for line in links if line.split(" ", 1)[1].startswith("/")]
    assert all(line.split()[0].endswith("/bin/python") for line in out), out
    assert all("/../" not in line.split(" ", 1)[1] or "/lib/" in line for line in links)


def test_D6_D7_no_residue(host: Host) -> None:
    # Only of what uv installed: a wheel may itself carry such files for what it vendors (setuptools and ray do).
    residue = r"\(INSTALLER\|REQUESTED\|direct_url.json\|uv_cache.json\)"
    ours = rf"/opt/venvs/[^/]*/lib/python3.13/site-packages/[^/]*\.dist-info/{residue}"
    command = f"find /opt /var /etc -xdev \\( -regex '{ours}' -o -name aux-cache \\) 2>/dev/null || true"
    assert host.check_output(command) == ""
    assert host.check_output("cat /etc/machine-id 2>/dev/null || true") == ""
    assert host.check_output("find /var/lib/apt/lists /var/cache /var/log -xdev -type f 2>/dev/null || true") == ""


def test_one_time_for_every_file_of_ours(host: Host, subject: Subject) -> None:
    """The epoch: a file with another time would give the layer another digest on another day."""
    assert host.check_output("find /opt -xdev -newermt @%s | head -3", str(subject.epoch)) == ""
