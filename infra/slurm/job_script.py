"""The script of a job: what an instance of another cloud runs as it boots, and what it lacks here.

A machine of EC2 has metadata, notices and a `shutdown` of its own. A job has a file for a notice
and a command `shutdown` first in its PATH, which ends the job alone. Slurm signals the steps of a
job that is preempted, not its script: a step of nothing but a shell listens for it.

A job locks its folder while it lives. One that was killed has left it, and maybe processes: the
next job on its host clears folders that nothing locks; one without a file `job` isn't locked yet,
or the folder of something else.
"""

from __future__ import annotations

from typing import Final

from cloudtune.infra.node.boot import INSTANCE_VARIABLE
from cloudtune.infra.node.gpus import COUNTED_VARIABLE
from cloudtune.infra.node.lease import MACHINE_VARIABLE
from cloudtune.infra.node.spot_notice import NOTICE_VARIABLE

# How long before its time limit a job hears of it: as long as EC2's notice.
NOTICE_SECONDS: Final = 120

_SCRIPT = r"""#!/bin/bash
clear_up() {
  for process in /proc/[0-9]*; do  # Slurm may lose sight of what starts a session of its own
    [[ $process != /proc/$$ ]] && grep -qsz "^folder=$1$" "$process/environ" &&
      kill -9 "${process#/proc/}"
  done 2> /dev/null
  rm -rf "$1"
}
for left in /tmp/ct-*; do
  [[ -O $left && -e $left/job ]] && flock -n "$left" true && clear_up "$left"
done
folder=$(mktemp -d /tmp/ct-XXXXXX) || exit
exec 9< "$folder" && flock 9 && echo $SLURM_JOB_ID > "$folder/job" || exit
export folder TMPDIR="$folder" SLURM_TIME_FORMAT=%s
mkdir "$folder/bin" "$folder/r"
cat > "$folder/bin/shutdown" <<'CLOUDTUNE'
#!/bin/bash
due=$(date +%s)
[[ $2 == +* ]] && due=$((due + 60 * ${2#+}))
echo $due > "$folder/due.part" && mv "$folder/due.part" "$folder/due"
CLOUDTUNE
chmod 700 "$folder/bin/shutdown"
cat > "$folder/boot" <<'CLOUDTUNE'
@boot@
CLOUDTUNE
notice() {
  for _ in 1 2 3 4 5; do  # the signal may come twice, and ends what runs here
    squeue --noheader --jobs=$SLURM_JOB_ID --format=%e > "$folder/notice.part" &&
      mv "$folder/notice.part" "$folder/notice" && return
    sleep 1
  done
}
export -f notice
export PATH="$folder/bin:$PATH" @machine@="slurm-$SLURM_JOB_ID"
export @instance@="slurm-$SLURM_JOB_ID" @notice@="$folder/notice"@counted@
trap notice TERM
srun --overlap --ntasks=1 --gpus=0 --mem=0 --quiet \
  bash -c 'trap notice TERM; while :; do sleep 1; done' > /dev/null 2>&1 9<&- &
listens=$!
bash "$folder/boot" 9<&- &
boots=$!
while kill -0 $boots 2> /dev/null; do
  sleep 0.5 9<&-  # else the lock outlives a job that was killed
  [[ -e $folder/due && $(date +%s) -ge $(cat "$folder/due") ]] && break
done
clear_up "$folder"
"""


def job_script(boot: str, *, counted: bool) -> str:
    """Return the script of a job that boots by the user data of an instance.

    Where GPUs are only `counted`, its slots are shares of a CPU node.
    """
    facts = {
        "boot": boot.rstrip("\n"),
        "machine": MACHINE_VARIABLE,
        "instance": INSTANCE_VARIABLE,
        "notice": NOTICE_VARIABLE,
        "counted": f" {COUNTED_VARIABLE}=1" if counted else "",
    }
    script = _SCRIPT
    for name, text in facts.items():
        script = script.replace(f"@{name}@", text)
    return script
