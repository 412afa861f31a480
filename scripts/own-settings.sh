# To be sourced: takes away the settings of this shell that would change what a script shows or
# measures, and what the host adds: its agent, and NCCL's configuration files. Lines of the logs and
# softverbs' way of copying may still be chosen.
for name in "${!MPIB_@}" "${!NCCL_@}" "${!RCCL_@}" "${!SOFTVERBS_@}"; do
    case $name in
        NCCL_DEBUG | SOFTVERBS_COPY | SOFTVERBS_LOG) ;;
        *) unset "$name" ;;
    esac
done
unset name
export MPIB_AGENT_SOCKET=/nonexistent/agent.sock MPIB_REACH_FILE=/nonexistent/reach NO_HOST_NCCL_CONF=1
