set +Cefuvx; unset CDPATH GREP_OPTIONS TAR_OPTIONS QUOTING_STYLE # what a user exports changes what a shell does
