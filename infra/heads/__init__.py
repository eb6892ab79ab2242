"""Runs that an instance of their own, the head, carries, and not their user's machine.

    STORAGE/RUN/head/parcel.tar.gz   what the head is given: the script's folder, profiles, files
    STORAGE/RUN/head/order.json      what it is to run
    STORAGE/RUN/head/remote.json     where it is, and until when
    STORAGE/RUN/head/record/…        what it knows of the run, brought away as it changes
    STORAGE/RUN/head/state.json      its own word: alive at this time, or how its command ended
    STORAGE/RUN/head/stop            there once somebody has asked it to end the run

What stands there, and in the tags of instances, is all that another machine needs to look on, to
end the run, or to go on with it.
"""
