import subprocess,time
def test_t(sshd):
    for extra in ([],["-o","KexAlgorithms=curve25519-sha256"],["-o","GSSAPIAuthentication=no"],["-o","ControlMaster=auto","-o","ControlPath=/tmp/h/cm-%C","-o","ControlPersist=20"]):
        w=[]
        for i in range(6):
            t=time.monotonic(); subprocess.run(["ssh","-F",str(sshd.config),*extra,sshd.host,"true"],check=True); w.append(time.monotonic()-t)
        print(extra,[f"{x:.2f}" for x in w])
    subprocess.run(["ssh","-O","exit","-o","ControlPath=/tmp/h/cm-%C","-F",str(sshd.config),sshd.host])
    print(subprocess.run(["ssh","-vvv","-F",str(sshd.config),sshd.host,"true"],capture_output=True,text=True).stderr[-3000:])
