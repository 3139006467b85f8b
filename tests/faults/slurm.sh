#!/bin/sh
# A Slurm cluster of two nodes for as long as one test takes: slurm.sh DIRECTORY COMMAND runs the shell command with the
# daemons up. They live in namespaces of their own, so that neither ports nor processes meet those of the machine, and
# whatever becomes of this script, all of them end with it. Exit code 77, with the reason, where they cannot start.
directory=$1 command=$2

skip() {
  echo "$1"
  exit 77
}

if [ -z "$SLURM_TEST_INSIDE" ]; then
  for name in slurmctld slurmd srun; do
    command -v $name >/dev/null || skip "$name is not installed"
  done
  unshare --mount --net --pid --fork true 2>/dev/null || skip "namespaces of its own are not permitted here"
  SLURM_TEST_INSIDE=1 exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "$directory" "$command"
fi

host=$(hostname)
printf '127.0.0.1 localhost weft1 weft2 %s\n' "$host" >"$directory/hosts"
# Slurm binds to no address where there is loopback alone.
ip link set lo up && ip link add eth0 type veth peer name eth1 && ip address add 10.231.8.1/24 dev eth0 &&
  ip link set eth0 up && ip link set eth1 up && mount --bind "$directory/hosts" /etc/hosts ||
  skip "the namespaces cannot be set up"

unset SLURM_TEST_INSIDE
export SLURM_CONF="$directory/slurm.conf"
mkdir "$directory/state" "$directory/weft1" "$directory/weft2"
cat >"$SLURM_CONF" <<END
ClusterName=weft
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/%n
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=weft[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=26819-26820 CPUs=8 State=UNKNOWN
PartitionName=weft Nodes=ALL Default=YES State=UP
END

slurmctld -D -c >"$directory/slurmctld.log" 2>&1 &
controller=$!
slurmd -D -N weft1 >"$directory/weft1.log" 2>&1 &
slurmd -D -N weft2 >"$directory/weft2.log" 2>&1 &
until=$(($(date +%s) + 20))
until [ "$(timeout 2 sinfo -h -o %T 2>/dev/null)" = idle ]; do
  kill -0 $controller 2>/dev/null && [ "$(date +%s)" -lt $until ] ||
    skip "the daemons do not start: $(tail -qn 3 "$directory"/*.log | tr '\n' ' ')"
  sleep 0.2
done
sh -c "$command"
