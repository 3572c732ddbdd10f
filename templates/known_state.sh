set +Cefuvx; unset CDPATH GREP_OPTIONS TAR_OPTIONS QUOTING_STYLE; export LANGUAGE=C # what a user exports changes what a shell does, and says
