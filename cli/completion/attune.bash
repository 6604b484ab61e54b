# Bash completion for attune. zsh: autoload -U bashcompinit && bashcompinit, then source this file.

_attune() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local problem='--arch --op --dtype --head-dim --head-dim-v --heads --heads-kv --batch --seqlen --seqlen-q --seqlen-k
    --causal --no-causal --deterministic --layout --scores --problem'
  local problems="$problem --model --grid --seqlens --tokens"
  local cache_commands='path ls show stats verify merge prune clear misses quarantine'
  local pack_commands='create ls verify diff merge'
  COMPREPLY=()

  # What an option's value may be.
  case $previous in
    --arch) COMPREPLY=($(compgen -W 'sm_90a' -- "$current")) ;;
    --op) COMPREPLY=($(compgen -W 'forward backward' -- "$current")) ;;
    --dtype) COMPREPLY=($(compgen -W 'bf16 fp16' -- "$current")) ;;
    --scores) COMPREPLY=($(compgen -W 'any peaked' -- "$current")) ;;
    --layout) COMPREPLY=($(compgen -W 'bshd bhsd' -- "$current")) ;;
    --head-dim | --head-dim-v) COMPREPLY=($(compgen -W '64 80 96 128 192 256' -- "$current")) ;;
    --regime) COMPREPLY=($(compgen -W 'burst sustained both' -- "$current")) ;;
    --for) COMPREPLY=($(compgen -W 'compile emulate launch tune' -- "$current")) ;;
    --grid) [[ ${COMP_WORDS[1]} == emulate ]] || COMPREPLY=($(compgen -W 'fa3' -- "$current")) ;;
    --shard) COMPREPLY=($(compgen -W 'auto' -- "$current")) ;;
    --cache-dir | --pack) COMPREPLY=($(compgen -d -- "$current")) ;;
    -o | --output | --out | --ptx | --model | --source) COMPREPLY=($(compgen -f -- "$current")) ;;
    --heads | --heads-kv | --batch | --seqlen | --seqlen-q | --seqlen-k | --problem | --seqlens | --tokens | --config | \
      --spec | --limit | --device | --device-identity | --budget | --max-candidates | --turns | --launches | --seconds | --commit | \
      --seeds | --first-seed | --emulate | --kernel | --block | --cluster | --shared | --arg | --save | \
      --resident-blocks | --instruction-limit | --compile-option | --keep | --unused-days | --lift | --alternates) ;;
    *) false ;;
  esac && return

  # The command, and under cache and pack what to do there.
  local command='' action='' word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == -* ]] && continue
    if [[ -z $command ]]; then
      command=$word
    elif [[ -z $action ]]; then
      action=$word
    fi
  done

  local words='--help --json'
  case $command in
    '') words="doctor emit compile inspect tune verify emulate bench explain cache pack --help --json --version" ;;
    doctor) words+=' --cache-dir --for' ;;
    emit) words+=" $problem --config --spec --list --limit --output" ;;
    compile) words+=" $problem --config --spec --output --ptx --log --force" ;;
    inspect) words+=' --cache-dir' ;;
    tune)
      words+=" $problems --cache-dir --device --budget --max-candidates --config --regime --shard --force --no-gpu
        --emulate"
      ;;
    verify) words+=" $problems --device --seeds --first-seed --source --cache-dir --config --pack" ;;
    emulate)
      words+=' --kernel --grid --block --cluster --shared --arg --save --seeds --first-seed --resident-blocks
        --instruction-limit --compile-option'
      ;;
    bench)
      words+=" $problems --device --cache-dir --config --pack --allow-unsigned --no-compiler --no-cache --regime --turns
        --launches --seconds --csv --peers --out --budget --commit --fa3"
      ;;
    explain) words+=" $problem --cache-dir --device-identity --limit" ;;
    cache)
      case $action in
        '') words="$cache_commands --help" ;;
        ls) words+=' --cache-dir --kernels --all' ;;
        prune) words+=' --cache-dir --keep --unused-days' ;;
        clear) words+=' --cache-dir --trials' ;;
        misses) words+=' --cache-dir --forget' ;;
        quarantine) words+=' --cache-dir --lift' ;;
        *) words+=' --cache-dir' ;;
      esac
      ;;
    pack)
      case $action in
        '') words="$pack_commands --help" ;;
        create) words+=" $problems --cache-dir --output --all --alternates --device-identity --config --spec" ;;
        merge) words+=' --output' ;;
      esac
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))

  # Files and folders where a command takes them.
  case "$command $action" in
    inspect* | emulate* | 'cache merge') COMPREPLY+=($(compgen -f -- "$current")) ;;
    'pack ls' | 'pack verify' | 'pack diff' | 'pack merge') COMPREPLY+=($(compgen -d -- "$current")) ;;
  esac
}

complete -o filenames -F _attune attune
