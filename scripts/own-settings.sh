# To be sourced: takes away the settings of this shell that would change what a script shows or
# measures. Lines of NCCL's log may still be asked for.
for name in "${!MPIB_@}" "${!NCCL_@}" SOFTVERBS_FABRIC SOFTVERBS_REPORT; do
    [[ $name == NCCL_DEBUG ]] || unset "$name"
done
unset name
